"""Recalibration with fewer stored samples equals a run trained with that setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom.errors import UserError
from clom.experiments.analysis.recalibration import with_fewer_samples
from clom.experiments.config import resolve
from clom.experiments.ledger import Row
from clom.experiments.run import execute

TINY: dict[str, Any] = {
    "data.sizes": [2, 2],
    "data.classes_per_task": None,
    "data.train_per_class": 40,
    "data.test_per_class": 20,
    "net.channels": [6, 6, 8],
    "net.hidden": 16,
    "learning.plan.epochs": 1,
    "learning.head.iterations": 5,
}
# Passes are those of the run that was trained, which scored more samples.
TIMES = {"minutes", "cpu_minutes", "peak_memory_gb", "average_incremental_cil", "passes"}


LEARNED: dict[str, Any] = {"learning.plan.epochs": 10, "net.hidden": 32, "attention.initial_mean": 1.0}
CROSS_TASK: dict[str, Any] = {"memory_fit.cross_task": 0.03}


def run(folder: Path, method: str = "clom", **overrides: Any) -> Path:
    config = resolve("digits-5t", method, "smoke", 0, TINY | overrides)
    execute(config, config.data.stream(None, 0), folder)
    return folder


def figures(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.figures.items() if name not in TIMES}


def test_equals_a_run_with_that_setting(tmp_path: Path) -> None:
    derived = with_fewer_samples(run(tmp_path / "four", memory_per_class=4), [2, 0])
    assert [row.overrides["memory_per_class"] for row in derived] == [2, 0]
    for row, count in zip(derived, (2, 0), strict=True):
        fresh = Row.of_run(run(tmp_path / str(count), memory_per_class=count))
        assert figures(row) == figures(fresh)
        assert row.key == fresh.key
    assert derived[0].figures["memory_bytes"] == 4 * 2 * 64


def test_the_auc_does_not_depend_on_the_number_of_samples(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", memory_per_class=4, **LEARNED, **CROSS_TASK)
    rows = [Row.of_run(folder), *with_fewer_samples(folder, [2, 1])]
    assert len({row.figures["auc_maxlogit"] for row in rows}) == 1
    assert len({row.figures["auc_msp"] for row in rows}) == 1
    assert len({row.figures["cil"] for row in rows}) > 1


def test_a_run_of_clom_records_what_clom_without_calibration_would(tmp_path: Path) -> None:
    with_calibration = Row.of_run(run(tmp_path / "with", memory_per_class=4, **LEARNED)).by_task
    without = Row.of_run(run(tmp_path / "without", "clom-no-calibration", memory_per_class=4, **LEARNED))
    assert with_calibration["cil_uncalibrated"] == without.by_task["cil"]
    assert with_calibration["cil_uncalibrated"] != with_calibration["cil"]
    assert with_calibration["task_detection_uncalibrated"][-1] == without.figures["task_detection"]


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", memory_per_class=2)
    with pytest.raises(UserError, match="stores 2 samples per class"):
        with_fewer_samples(folder, [2])
    with pytest.raises(UserError, match="nothing to vary"):
        with_fewer_samples(run(tmp_path / "none", calibration="scale"), [1])
