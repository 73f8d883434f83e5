"""Rules for switching to the next path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clom.methods.a_rps.switching import FisherCapacity, Interval, Never, idle_share

IDLE_HALF = torch.tensor([4, 1, 0.02, 0.01, 0, 0, 0.5, 3])


def must_not_be_called(samples: int) -> Tensor:
    raise AssertionError("the Fisher information is expensive and not needed here")


def test_interval() -> None:
    assert [Interval(interval=2).should_switch(task, 1, must_not_be_called) for task in range(5)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert Interval(interval=1).should_switch(0, 1, must_not_be_called)


def test_never() -> None:
    assert not any(Never().should_switch(task, task + 1, must_not_be_called) for task in range(40))


def test_idle_share() -> None:
    assert idle_share(IDLE_HALF, 0.1) == 0.5
    assert idle_share(torch.empty(0), 0.1) == 0.0


@pytest.mark.parametrize(("least_idle", "switches"), [(0.4, False), (0.6, True)])
def test_capacity_decides(least_idle: float, switches: bool) -> None:
    calls = []

    def fisher_of(samples: int) -> Tensor:
        calls.append(samples)
        return IDLE_HALF

    rule = FisherCapacity(interval=3, least_idle=least_idle, samples=7)
    assert rule.should_switch(5, 1, fisher_of) == switches
    assert calls == [7]
    assert rule.should_switch(5, 3, must_not_be_called), "the path has reached its maximum age"


def test_a_path_without_free_parameters_has_no_capacity() -> None:
    assert FisherCapacity().should_switch(0, 1, lambda samples: torch.empty(0))
