"""What is measured after each task, and the file it is kept in, `metrics.jsonl`: a line of JSON for every task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.evaluation.metrics import Evaluation


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
        data = json.loads(line)
        written, result = data.pop("checksum", None), TaskResult.from_json(data)
        # Lines of before there were checksums are taken as they are, but not lines in which that word is damaged.
        is_old = written is None and data.items() <= result.to_json().items()
        if not is_old and written != _checksum(data):
            raise ValueError("a line is not what was written")
        return result


def read_results(path: Path, n_tasks: int) -> list[TaskResult]:
    """The first lines of `metrics.jsonl`, one for each task of the model beside it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:n_tasks]
        results = [TaskResult.from_line(line) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path} cannot be read ({problem}). Remove the run's folder to start anew.") from None
    if len(results) != n_tasks:
        raise UserError(f"{path} tells of {len(results)} tasks, the model beside it of {n_tasks}. Start the run anew.")
    return results


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
