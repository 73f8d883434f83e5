"""The record of a task in a model file."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from clom.methods.families.task_record import TaskRecord, now
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
