"""What a line of the ledger may hold: tables, figures and pages rely on it.

Tested by tests/experiments/test_ledger.py.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that cannot be shown")
    return text


def _sensible(number: float) -> float:
    if math.isfinite(number) and abs(number) > 1e15:
        raise ValueError("no figure of a run is that large")
    return number


Name = Annotated[str, Field(max_length=300), AfterValidator(_printable)]
Number = Annotated[float, AfterValidator(_sensible)] | None
"""None where a run does not know it."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    experiment: Name
    method: Name
    budget: Name
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    overrides: dict[Name, Any] = {}
    figures: dict[Name, Number | dict[Name, Number]] = {}
    by_task: dict[Name, list[Number | list[Number]]] = {}
    commit: Name | None = None
    versions: dict[Name, Name] = {}
    machine: Name = ""
    device: Name = "cpu"
    precision: Name = "float32"


def check_row(data: Any) -> None:
    """A `ValueError` says what is wrong."""
    row = _Row.model_validate(data)
    for name, value in row.figures.items():
        if isinstance(value, dict) != (name == "cil_by_calibration"):
            raise ValueError(f"the figure '{name}' is of the wrong kind")
    for name, values in row.by_task.items():
        if any(isinstance(value, list) != (name == "til_by_task") for value in values):
            raise ValueError(f"'{name}' is of the wrong kind")
