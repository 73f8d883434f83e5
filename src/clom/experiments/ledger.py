"""The ledger: one JSON line per finished run, written by commands only, never by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clom.errors import UserError, shorten
from clom.evaluation.metrics import Evaluation
from clom.experiments.ledger_schema import check_row
from clom.experiments.run_folder import signature
from clom.experiments.task_result import TaskResult
from clom.files import parse_json, read_json, read_text, write_atomically
from clom.locks import Lock

_SECONDS_TO_WAIT = 30.0
FIGURES = (
    "til",
    "cil",
    "cil_by_calibration",
    "task_detection",
    "auc_maxlogit",
    "auc_msp",
    "forgetting",
    "average_incremental_til",
    "average_incremental_cil",
    "parameters",
    "memory_bytes",
    "minutes",
    "cpu_minutes",
    "peak_memory_gb",
)
WORK = ("passes", "allowance")
"""Figures that runs of older versions do not have."""


@dataclass(frozen=True)
class Row:
    """A run: its settings, its results (fractions, not percent) and its environment."""

    experiment: str
    method: str
    budget: str
    seed: int
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the recipe."""
    figures: dict[str, Any] = field(default_factory=dict)
    by_task: dict[str, list[Any]] = field(default_factory=dict)
    """After each task: TIL, CIL, and the TIL of every task so far."""
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    device: str = "cpu"
    precision: str = "float32"
    search: str = ""
    """The search that found the recipe; empty if it was written by hand."""
    superseded: str = ""
    """When another run took its place; empty for a run that counts."""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """A row supersedes an older one with the same key."""
        return self.experiment, self.method, self.budget, self.seed, json.dumps(self.overrides, sort_keys=True)

    @staticmethod
    def of_run(folder: Path) -> Row:
        """The row of a finished run's folder."""
        for name in ("summary.json", "environment.json", "metrics.jsonl"):
            if not (folder / name).exists():
                raise UserError(f"{folder} is not a finished run: it has no {name}.")
        signature.check(folder)
        try:
            summary, environment = (read_json(folder / name) for name in ("summary.json", "environment.json"))
            lines = read_text(folder / "metrics.jsonl").splitlines()
            history = [TaskResult.from_line(line).evaluation for line in lines]
            row = Row(
                summary["experiment"],
                summary["method"],
                summary["budget"],
                summary["seed"],
                summary["overrides"],
                {name: summary[name] for name in FIGURES}
                | {name: summary[name] for name in WORK if summary.get(name) is not None},
                _by_task(history),
                environment["commit"],
                {"python": environment["python"], **environment["packages"]},
                f"{environment['processor']}, {environment['threads']} threads",
                environment.get("device", "cpu"),
                environment.get("precision", "float32"),
                summary.get("search") or "",
            )
            check_row(asdict(row))
            return row
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as problem:
            raise UserError(f"{folder} cannot be read as a run ({shorten(repr(problem), 300)}).") from None


def _by_task(history: Sequence[Evaluation]) -> dict[str, list[Any]]:
    """Figures after each task. Without calibration, they are those of CLOM(-c), if the run is one of CLOM."""
    found: dict[str, list[Any]] = {
        "til": [after.til for after in history],
        "cil": [after.preferred.cil for after in history],
        "til_by_task": [after.til_by_task for after in history],
    }
    if all("none" in after.by_calibration for after in history):
        uncalibrated = [after.by_calibration["none"] for after in history]
        found["cil_uncalibrated"] = [each.cil for each in uncalibrated]
        found["task_detection_uncalibrated"] = [each.task_detection for each in uncalibrated]
    return found


def read(path: Path) -> list[Row]:
    """The rows that count: without superseded ones; empty if there is no ledger yet."""
    return [row for row in read_all(path) if not row.superseded]


def read_all(path: Path) -> list[Row]:
    """All rows; empty if there is no ledger yet."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            data = parse_json(line)
            check_row(data)
            rows.append(Row(**data))
        except (ValueError, TypeError) as problem:
            why = shorten(" ".join(str(problem).split()), 300)
            raise UserError(f"{path} is not a ledger: line {number} is not a run ({why}).") from None
    return rows


def add(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to the ledger; sorted, so that diffs are easy to read. Other results of the same runs stay, marked as
    superseded."""
    with Lock(path, "written", patience=_SECONDS_TO_WAIT):  # several grids may add to one ledger
        _add(path, rows)


def _add(path: Path, rows: Iterable[Row]) -> None:
    known, now = read_all(path), datetime.now(UTC).isoformat(timespec="seconds")
    current = {row.key: row for row in known if not row.superseded}
    superseded = [row for row in known if row.superseded]
    for row in rows:
        old = current.get(row.key)
        if old is not None and _line(old) != _line(row):  # else it was recorded before
            superseded.append(replace(old, superseded=now))
        current[row.key] = row
    ordered = sorted([*current.values(), *superseded], key=lambda row: (row.key, not row.superseded, row.superseded))
    lines = [_line(row) for row in ordered]
    write_atomically(path, "".join(line + "\n" for line in lines).encode())


def _line(row: Row) -> str:
    """Usual values of newer fields are not written, so that older ledgers, which lack them, do not change."""
    usual = {"device": "cpu", "precision": "float32", "search": "", "superseded": ""}
    written = {name: value for name, value in asdict(row).items() if usual.get(name) != value}
    return json.dumps(_rounded(written), sort_keys=True)


def _rounded(value: Any) -> Any:
    """Five digits are more than any accuracy needs."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
