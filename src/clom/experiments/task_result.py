"""Results after each task, and the file that stores them: `metrics.jsonl`, one JSON line per task."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from clom.errors import UserError, shorten
from clom.evaluation.metrics import Evaluation
from clom.files import parse_json, read_text


@dataclass(frozen=True)
class TaskResult:
    """One line of `metrics.jsonl`."""

    evaluation: Evaluation
    minutes: float
    """Time spent learning and evaluating this task."""
    cpu_minutes: float
    """CPU time of all cores: comparable even if other programs run on the machine."""
    capacity: dict[str, float]
    """Gate group -> fraction of its units in use; empty for methods without gates."""
    passes: float | None = None
    """Training passes (`clom.nets.passes`); None if they were not counted."""
    units: dict[str, int] = field(default_factory=dict)
    """Gate group -> its number of units; empty if it is not known, as in older files."""

    def to_json(self) -> dict[str, Any]:
        # What older files do not have is left out if it is not known, so that their lines stay as they are.
        counted = {} if self.passes is None else {"passes": self.passes}
        sized = {"units": self.units} if self.units else {}
        return counted | {
            "minutes": self.minutes,
            "cpu_minutes": self.cpu_minutes,
            "capacity": self.capacity,
            **sized,
            **self.evaluation.to_json(),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TaskResult:
        cpu_minutes = data.get("cpu_minutes", data["minutes"])  # older files do not have it; those runs used one core
        known = data["capacity"], data.get("passes"), data.get("units", {})
        return TaskResult(Evaluation.from_json(data), data["minutes"], cpu_minutes, *known)

    def to_line(self) -> str:
        """With a checksum, so that damage is noticed."""
        data = self.to_json()
        return json.dumps(data | {"checksum": _checksum(data)}) + "\n"

    @staticmethod
    def from_line(line: str) -> TaskResult:
        data = parse_json(line)
        written, result = data.pop("checksum", None), TaskResult.from_json(data)
        # Older lines have no checksum. A line in which the word "checksum" is damaged is not mistaken for one of these.
        is_old = written is None and data.items() <= result.to_json().items()
        if not is_old and written != _checksum(data):
            raise ValueError("a checksum does not match")
        return result


def used_shares(tasks: Sequence[TaskResult]) -> list[dict[str, float]]:
    """Gate group -> units in use after each task, as a fraction of those that the last task has: the capacity, unless
    the network grew."""
    last = tasks[-1].units
    return [
        {group: used * task.units[group] / last[group] if task.units else used for group, used in task.capacity.items()}
        for task in tasks
    ]


def growth(tasks: Sequence[TaskResult]) -> dict[str, tuple[int, int]]:
    """The gate groups that grew -> units of the first and of the last task."""
    first, last = tasks[0].units, tasks[-1].units
    return {group: (first[group], size) for group, size in last.items() if first.get(group, size) != size}


def read_results(path: Path, n_tasks: int | None = None) -> list[TaskResult]:
    """The lines of `metrics.jsonl`; with `n_tasks`, the number of tasks in the model, only those of the first tasks."""
    try:
        lines = read_text(path).splitlines()[:n_tasks]
        results = [_checked(TaskResult.from_line(line), n) for n, line in enumerate(lines, start=1)]
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as problem:
        why = shorten(" ".join(str(problem).split()), 300)
        raise UserError(f"{path} cannot be read ({why}). Remove the run's folder to start over.") from None
    if n_tasks is not None and len(results) != n_tasks:
        raise UserError(
            f"{path} has {len(results)} tasks, but the model has {n_tasks}. Remove the run's folder to start over."
        )
    return results


def _checked(result: TaskResult, n_tasks: int) -> TaskResult:
    """The same result, after a check that there is a finite number for each task."""
    TypeAdapter(TaskResult).validate_python(result.to_json() | {"evaluation": result.evaluation.to_json()})
    evaluation = result.evaluation
    calibrated = list(evaluation.by_calibration.values())
    rows = [evaluation.til_by_task, *(row for one in calibrated for row in (one.cil_by_task, *one.task_confusion))]
    if result.passes is not None and not math.isfinite(result.passes):
        raise ValueError("its number of passes is not finite")
    if evaluation.n_tasks != n_tasks or not calibrated or {len(one.task_confusion) for one in calibrated} != {n_tasks}:
        raise ValueError(f"it does not have {n_tasks} tasks")
    if any(len(row) != n_tasks or not all(map(math.isfinite, row)) for row in rows):
        raise ValueError(f"it does not have a number for each of {n_tasks} tasks")
    return result


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
