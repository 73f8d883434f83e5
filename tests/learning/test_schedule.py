"""Learning-rate schedules of the paper and of the small budgets."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from clom.learning.schedule import Schedule

PAPER = Schedule(kind="cosine", warmup=10, start=0.1, horizon=700, every="epoch")


@pytest.mark.parametrize(
    ("epoch", "rate"), [(0, 0.1), (5, 0.55), (9, 0.91), (10, 1.0), (355, 0.5112), (360, 0.5), (699, 0.00061)]
)
def test_the_papers_rates(epoch: int, rate: float) -> None:
    assert PAPER.factor(epoch, 700) == pytest.approx(rate, abs=5e-5 if rate > 0.01 else 5e-6)


def test_once_an_epoch() -> None:
    assert PAPER.factor(5.99, 700) == PAPER.factor(5, 700)
    every_step = PAPER.model_copy(update={"every": "step"})
    assert every_step.factor(5.5, 700) == pytest.approx(0.595)


def test_cosine_ends_with_the_training_by_default() -> None:
    schedule = Schedule(kind="cosine", warmup=2)
    assert schedule.factor(2, 10) == 1
    assert schedule.factor(6, 10) == pytest.approx(0.5)
    assert schedule.factor(10, 10) == pytest.approx(0, abs=1e-15)
    assert schedule.factor(11, 10) == pytest.approx(0, abs=1e-15)  # never rises again


def test_steps_of_the_papers_classifier() -> None:
    schedule = Schedule(kind="steps", steps=(60, 75, 90), every="epoch")
    rates = [0.1 * schedule.factor(epoch, 100) for epoch in (0, 59, 60, 74, 75, 89, 90, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])


def test_every_step_may_drop_by_its_own_factor() -> None:
    """HyperNet's rates, of which the last is half of the one before."""
    schedule = Schedule(kind="steps", steps=(80, 120, 160, 180), drop=(0.1, 0.1, 0.1, 0.5), every="epoch")
    rates = [schedule.factor(epoch, 200) for epoch in (79, 80, 120, 160, 179, 180, 199)]
    assert rates == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-3, 5e-4, 5e-4])
    with pytest.raises(ValidationError, match="drop has 1 values for 2 steps"):
        Schedule(kind="steps", steps=(1, 2), drop=(0.1,))
    with pytest.raises(ValidationError, match="must be in order"):
        Schedule(kind="steps", steps=(2, 1), drop=(0.1, 0.5))


def test_constant_with_and_without_warm_up() -> None:
    assert [Schedule(kind="constant").factor(position, 10) for position in (0.0, 3.3, 9.9)] == [1, 1, 1]
    warm = Schedule(kind="constant", warmup=2, start=0.5)
    assert [warm.factor(position, 10) for position in (0, 1, 2, 3)] == pytest.approx([0.5, 0.75, 1, 1])


def test_misspelt_names_are_refused() -> None:
    with pytest.raises(ValidationError):
        Schedule.model_validate({"kind": "linear"})
    with pytest.raises(ValidationError):
        Schedule.model_validate({"warm_up": 3})
