"""A finished run is read from its folder, or refused with the name of the damaged file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.experiments.analysis.finished_run import read_run
from clom.storage.tensors import read_tensors, to_bytes

FINISHED = Path(__file__).parents[1] / "earlier" / "run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FINISHED, tmp_path / "run"))


def test_a_finished_run_is_read(folder: Path) -> None:
    run = read_run(folder)
    assert (run.config.experiment, run.config.seed) == ("digits-5t", 1)
    assert [len(row) for row in run.blocks] == [5] * 5
    assert {tuple(block.shape) for row in run.blocks for block in row} == {(16, 2)}
    assert run.class_names[0] == ("0", "1")
    assert run.last.til == run.summary["til"]
    assert [evaluation.n_tasks for evaluation in run.history] == [1, 2, 3, 4, 5]
    assert (run.scores, run.validation, run.external) == (None, None, {})


def test_calibrated_scores_give_the_reported_accuracy(folder: Path) -> None:
    run = read_run(folder)
    calibrated = [torch.cat(run.calibration(row), 1) for row in run.blocks]
    right = [(scores.argmax(1) // 2 == task).float().mean().item() for task, scores in enumerate(calibrated)]
    assert sum(right) / len(right) == pytest.approx(run.last.preferred.task_detection)


def test_scores_of_another_run_are_refused(folder: Path) -> None:
    path = folder / "scores.safetensors"
    tensors, header = read_tensors(path)
    for problem, changed in {
        "has no scores": {name: value for name, value in tensors.items() if name != "0.4"},
        "have shapes": {**tensors, "0.4": tensors["0.4"][:3]},
        "NaN": {**tensors, "0.4": tensors["0.4"] * float("nan")},
    }.items():
        path.write_bytes(to_bytes(changed, header))
        with pytest.raises(UserError, match=problem):
            read_run(folder)


@pytest.mark.parametrize("name", ["environment.json", "summary.json"])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text(json.dumps(["a list"]))
    with pytest.raises(UserError, match=name):
        read_run(folder)


@pytest.mark.parametrize(
    "content", [{"external": [1]}, {"predictors": [1]}, {"predictors": {"argmax": {"title": "x"}}}]
)
def test_a_damaged_comparison_of_scores(folder: Path, content: dict[str, object]) -> None:
    (folder / "scores.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"scores\.json is damaged"):
        read_run(folder)


def test_a_comparison_of_scores_without_predictors(folder: Path) -> None:
    """As earlier versions wrote it."""
    (folder / "scores.json").write_text(json.dumps({"external": {"": None}}))
    assert read_run(folder).scores == {"external": {"": None}, "predictors": {}}
