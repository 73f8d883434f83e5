"""The schema of a line of the ledger, which tables, figures and pages rely on.

Tested by tests/experiments/test_ledger.py.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has unprintable characters")
    return text


def _sensible(number: float) -> float:
    if math.isfinite(number) and abs(number) > 1e15:
        raise ValueError("the number is too large")
    return number


Name = Annotated[str, Field(max_length=300), AfterValidator(_printable)]
Number = Annotated[float, AfterValidator(_sensible)] | None
"""None if it is not known for a run."""


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
    search: Name = ""
    superseded: Name = ""


def check_row(data: Any) -> None:
    """Raise `ValueError` if a row does not follow the schema."""
    row = _Row.model_validate(data)
    for name, value in row.figures.items():
        if isinstance(value, dict) != (name == "cil_by_calibration"):
            raise ValueError(f"the figure '{name}' has the wrong type")
    for name, values in row.by_task.items():
        if any(isinstance(value, list) != (name == "til_by_task") for value in values):
            raise ValueError(f"'{name}' has the wrong type")
