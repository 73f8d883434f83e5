"""Rank and world size from torchrun's environment variables."""

from __future__ import annotations

import pytest

from clom.errors import UserError
from clom.launch import Launch, read_launch

ENVIRONMENT = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_rank_and_world_size_are_read() -> None:
    assert read_launch({}) == Launch(0, 1, 0, 1)
    assert read_launch({"WORLD_SIZE": "1"}).is_main
    launch = read_launch({**ENVIRONMENT, "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert launch == Launch(3, 4, 1, 2)
    assert not launch.is_main


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": ""}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be an integer"),
    ],
)
def test_invalid_environments_are_rejected(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_launch(ENVIRONMENT | change)
