"""Familiarity and what rejecting costs, by hand and as laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clom.methods.families.task_record import TaskRecord, is_unknown, now


def record(*belonging: float, **other: Any) -> TaskRecord:
    fields = {"learned": now(), "images": (3,), "validation_images": (1,), "accuracy": 1.0, "fingerprint": "x"}
    return TaskRecord.model_validate({**fields, "belonging": belonging, **other})


def test_among_the_held_out_images_it_is_the_conformal_p_value() -> None:
    four = record(1.0, 2.0, 3.0, 5.0)
    assert [four.familiarity(score) for score in (1.0, 1.5, 2.0, 4.9, 5.0, 99.0)] == [0.4, 0.4, 0.6, 0.8, 1.0, 1.0]


def test_below_them_an_exponential_tail_goes_on() -> None:
    """The middle of 1, 2, 3, 5 is 3; the lower half lies 2 and 1 below it: the scale is 1.5."""
    four = record(1.0, 2.0, 3.0, 5.0)
    assert four.familiarity(1.0 - 1.5) == pytest.approx(math.exp(-1) / 5)
    assert four.familiarity(1.0 - 15) == pytest.approx(math.exp(-10) / 5)
    assert four.familiarity(-math.inf) == 0.0


def test_equal_scores_have_no_tail() -> None:
    assert record(2.0, 2.0).familiarity(1.0) == 0.0
    assert record(2.0).familiarity(1.99) == 0.0
    assert record(2.0).familiarity(2.0) == 1.0


def test_without_held_out_images_nothing_is_unknown() -> None:
    assert record().familiarity(0.0) is None
    assert not is_unknown(record().familiarity(-99.0), 0.99)
    assert record().cost(0.5) == 0.0


def test_nothing_familiar_at_all_is_unknown_even_at_rate_zero() -> None:
    assert is_unknown(0.0, 0.0)
    assert not is_unknown(1e-300, 0.0)


def test_the_cost_of_a_rate_comes_in_steps() -> None:
    nineteen = record(*range(19))
    assert [nineteen.cost(rate) for rate in (0.0, 0.05, 0.099, 0.1, 0.15, 0.5)] == [
        0.0, 0.0, 0.0, 1 / 19, 2 / 19, 9 / 19
    ]  # fmt: skip


scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60).map(sorted)


@given(scores, st.floats(0, 0.999))
def test_rejecting_never_costs_more_than_the_rate(belonging: list[float], rate: float) -> None:
    assert record(*belonging).cost(rate) <= rate


@given(scores, st.floats(-2e6, 2e6), st.floats(0, 1e6))
def test_a_higher_score_is_never_less_familiar(belonging: list[float], score: float, more: float) -> None:
    one = record(*belonging)
    low, high = one.familiarity(score), one.familiarity(score + more)
    assert low is not None
    assert high is not None
    assert 0 <= low <= high <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"belonging": (2.0, 1.0)},
        {"belonging": (math.nan,)},
        {"accuracy": 1.5},
        {"sharpness": 0.0},
        {"images": (-1,)},
        {"learned": "yesterday"},
        {"learned": "2026-01-01T00:00:00"},
        {"surprise": 1},
    ],
)
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        record(**change) if "belonging" not in change else record(*change["belonging"])


def test_it_survives_being_written_as_json() -> None:
    one = record(7e-12, 0.1, 1 / 3, sharpness=2.5)
    assert TaskRecord.model_validate_json(one.model_dump_json()) == one
