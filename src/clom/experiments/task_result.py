"""What is measured after each task, and the file it is kept in, `metrics.jsonl`: a line of JSON for every task."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
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
    """The same in time of all cores together: what counts where other work runs beside."""
    capacity: dict[str, float]
    """Gate group -> fraction of its units in use; empty for methods without gates."""

    def to_json(self) -> dict[str, Any]:
        return {
            "minutes": self.minutes,
            "cpu_minutes": self.cpu_minutes,
            "capacity": self.capacity,
            **self.evaluation.to_json(),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TaskResult:
        core = data.get("cpu_minutes", data["minutes"])  # runs of before it was recorded used one core
        return TaskResult(Evaluation.from_json(data), data["minutes"], core, data["capacity"])

    def to_line(self) -> str:
        """With a checksum, so that no damage is taken for a result."""
        data = self.to_json()
        return json.dumps(data | {"checksum": _checksum(data)}) + "\n"

    @staticmethod
    def from_line(line: str) -> TaskResult:
        data = parse_json(line)
        written, result = data.pop("checksum", None), TaskResult.from_json(data)
        # Lines of before there were checksums are taken as they are, but not lines in which that word is damaged.
        is_old = written is None and data.items() <= result.to_json().items()
        if not is_old and written != _checksum(data):
            raise ValueError("a line is not what was written")
        return result


def read_results(path: Path, n_tasks: int | None = None) -> list[TaskResult]:
    """The lines of `metrics.jsonl`; those of the first tasks if the model beside it has `n_tasks`."""
    try:
        lines = read_text(path).splitlines()[:n_tasks]
        results = [_checked(TaskResult.from_line(line), n) for n, line in enumerate(lines, start=1)]
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as problem:
        why = shorten(" ".join(str(problem).split()), 300)
        raise UserError(f"{path} cannot be read ({why}). Remove the run's folder to start anew.") from None
    if n_tasks is not None and len(results) != n_tasks:
        raise UserError(f"{path} tells of {len(results)} tasks, the model beside it of {n_tasks}. Start the run anew.")
    return results


def _checked(result: TaskResult, n_tasks: int) -> TaskResult:
    """The same, if every figure is a number and there is one for each task."""
    TypeAdapter(TaskResult).validate_python(result.to_json() | {"evaluation": result.evaluation.to_json()})
    found = result.evaluation
    ways = list(found.by_calibration.values())
    rows = [found.til_by_task, *(row for way in ways for row in (way.cil_by_task, *way.task_confusion))]
    if found.n_tasks != n_tasks or not ways or {len(way.task_confusion) for way in ways} != {n_tasks}:
        raise ValueError(f"it does not tell of {n_tasks} tasks")
    if any(len(row) != n_tasks or not all(map(math.isfinite, row)) for row in rows):
        raise ValueError(f"it does not have a figure for each of {n_tasks} tasks")
    return result


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
