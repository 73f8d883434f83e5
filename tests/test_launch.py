"""What torchrun tells a process about the others."""

from __future__ import annotations

import pytest

from clom.errors import UserError
from clom.launch import Launch, read_launch

TOLD = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_torchrun_says_is_understood() -> None:
    assert read_launch({}) == Launch(0, 1, 0, 1)
    assert read_launch({"WORLD_SIZE": "1"}).leads
    launch = read_launch({**TOLD, "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert launch == Launch(3, 4, 1, 2)
    assert not launch.leads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": ""}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number"),
    ],
)
def test_what_it_cannot_have_said_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_launch(TOLD | change)
