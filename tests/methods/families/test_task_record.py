"""The record of a task in a model file."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from clom.errors import UserError
from clom.methods.families.task_record import LearnedTask, TaskRecord, check_new_task, now
from clom.ood.rejection import HeldOutScores


def record(*belonging: float, **other: Any) -> TaskRecord:
    fields = {"learned": now(), "images": (3,), "validation_images": (1,), "accuracy": 1.0, "fingerprint": "x"}
    return TaskRecord.model_validate({**fields, "belonging": belonging, **other})


def test_held_out_scores_decide_what_is_unknown() -> None:
    assert record(1.0, 2.0, 3.0, 5.0).own_scores == HeldOutScores((1.0, 2.0, 3.0, 5.0))
    assert record().own_scores.familiarity(0.0) is None


@pytest.mark.parametrize(
    "change",
    [
        {"belonging": (2.0, 1.0)},
        {"belonging": (math.nan,)},
        {"accuracy": 1.5},
        {"logit_scale": 0.0},
        {"logit_scale": 1e300},
        {"task_logit_scale": 1e300},
        {"sharpness": 0.0},
        {"images": (-1,)},
        {"learned": "yesterday"},
        {"learned": "2026-01-01T00:00:00"},
        {"surprise": 1},
    ],
)
def test_invalid_records_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        record(**change) if "belonging" not in change else record(*change["belonging"])


def test_json_round_trip() -> None:
    one = record(7e-12, 0.1, 1 / 3, logit_scale=2.5)
    assert TaskRecord.model_validate_json(one.model_dump_json()) == one


def test_older_files_call_the_logit_scale_sharpness() -> None:
    assert record(sharpness=2.5) == record(logit_scale=2.5)
    written = record(logit_scale=2.5).model_dump(mode="json")
    assert written["logit_scale"] == 2.5
    assert "sharpness" not in written


def test_the_time_can_be_given_for_files_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert now() == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    for nonsense in ("", "soon", "-1", "9" * 30, "١٢"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", nonsense)
        assert abs((datetime.now(UTC) - now()).total_seconds()) < 60


@pytest.mark.parametrize(
    ("name", "classes", "why"),
    [
        ("one", ("c", "d"), "already"),
        ("two", ("c", "a"), "learned before: a"),
        ("two", ("c", "c"), "Two classes"),
        ("two\x1b", ("c", "d"), "control characters"),
    ],
)
def test_names_of_a_new_task(name: str, classes: tuple[str, ...], why: str) -> None:
    learned = [LearnedTask("one", ("a", "b"))]
    with pytest.raises(UserError, match=why):
        check_new_task(learned, name, classes)
    check_new_task(learned, "two", ("c", "d"))
