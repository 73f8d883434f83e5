"""A finished run with fewer stored samples: only the calibration is refitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.ledger import Row
from clom.experiments.run import read_finished
from clom.methods.families.base import Method
from clom.storage.model_file import load_model
from clom.storage.score_file import read_scores

_NOT_RECOMPUTED = ("average_incremental_cil",)  # would need the calibrations after every task


def with_fewer_samples(folder: Path, counts: Iterable[int], data: Path | None = None) -> list[Row]:
    """A row for every number of samples per class, equal to that of a run trained with this number."""
    config, method = read_finished(folder), load_model(folder / "model.safetensors")
    stored = method.calibration_samples
    if stored is None:
        raise UserError(f"The run in {folder} stores no samples for calibration: there is nothing to vary.")
    wanted = sorted(set(counts), reverse=True)
    if wanted and not 0 <= wanted[-1] <= wanted[0] < stored:
        raise UserError(f"The run in {folder} stores {stored} samples per class: choose smaller numbers.")
    book = Scorebook(config.data.stream(data, config.seed).tests)
    book.restore(read_scores(folder / "scores.safetensors", [task.n_classes for task in method.tasks]))
    row = Row.of_run(folder)
    return [_recalibrated(row, method, book, count) for count in wanted]


def _recalibrated(row: Row, method: Method, book: Scorebook, count: int) -> Row:
    method.recalibrate(count)
    evaluation = evaluate(book, method.calibrations())
    figures: dict[str, Any] = {name: value for name, value in row.figures.items() if name not in _NOT_RECOMPUTED}
    figures |= {
        "cil": evaluation.preferred.cil,
        "cil_by_calibration": {name: result.cil for name, result in evaluation.by_calibration.items()},
        "task_detection": evaluation.preferred.task_detection,
        "auc_maxlogit": evaluation.preferred.auc_maxlogit,
        "auc_msp": evaluation.preferred.auc_msp,
        "memory_bytes": method.memory_bytes,
    }
    by_task = {name: values for name, values in row.by_task.items() if name != "cil"}
    return replace(row, overrides={**row.overrides, "memory_per_class": count}, figures=figures, by_task=by_task)
