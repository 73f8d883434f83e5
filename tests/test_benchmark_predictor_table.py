"""The table of predictors shows what `clom scores` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.predictor_table import main, read_reports


def result(cil: float, samples: int, validation: bool = True) -> dict[str, Any]:
    return {
        "validation": {"task_detection": 0.5, "cil": cil - 0.1} if validation else None,
        "test": {"task_detection": 0.9, "cil": cil},
        "statistics_bytes": 2000,
        "sample_bytes": samples,
        "external": {"kmnist": {"auc": 0.75, "fpr95": 0.5}},
    }


def write_run(folder: Path, seed: int, cil: float) -> Path:
    folder.mkdir()
    report = {
        "experiment": "digits-5t", "method": "clom", "seed": seed, "til": 0.99, "external": {"kmnist": 10},
        "predictors": {"fusion": result(cil, 100), "argmax": result(0.6, 0, validation=False)},
    }  # fmt: skip
    (folder / "scores.json").write_text(json.dumps(report))
    return folder


def test_runs_of_several_seeds_are_one_table(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run {seed}", seed, cil) for seed, cil in enumerate((0.9, 0.92))]
    main([*map(str, runs), "--out", str(tmp_path / "table.md")])
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "## digits-5t, clom (seeds 0, 1; TIL 99.0 ± 0.0)" in text
    assert "| `fusion` | yes | 81.0 ± 1.4 | 90.0 ± 0.0 | 91.0 ± 1.4 | 2 |" in text
    assert "| `argmax` | no | – | 90.0 ± 0.0 | 60.0 ± 0.0 | 2 |" in text
    assert text.index("`argmax`") < text.index("`fusion`"), "those without samples come first"
    assert "| `fusion` | 75.0 ± 0.0 | 50.0 ± 0.0 |" in text


def test_a_run_without_scores_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run clom scores"):
        read_reports([tmp_path])
