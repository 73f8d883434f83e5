"""Runs and a ledger written by an earlier version are reported, recorded, scored and resumed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clom.cli import main
from clom.experiments.config import resolve
from clom.experiments.ledger import Row, add, read
from clom.reporting.paper.rendering import RENDERERS
from clom.reporting.paper.tables import make_table
from clom.settings import flatten
from clom.storage.model_file import load_model

FOLDER = Path(__file__).parent / "earlier"


def clom(*arguments: str | Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in arguments])
    assert end.value.code in (None, 0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / "run", tmp_path / "run"))


def test_is_recorded_as_by_the_earlier_version(run: Path, tmp_path: Path) -> None:
    """Except for the AUC with other stored samples, which depended on them and does not any more, and for curves that
    were not recorded then."""
    ledger = tmp_path / "ledger.jsonl"
    clom("record", run, "--memory", "5", "--ledger", ledger)
    known = {row.key: row for row in read(FOLDER / "ledger.jsonl")}
    recorded = sorted((_without_new_curves(row) for row in read(ledger)), key=lambda row: len(row.overrides))
    assert [row.overrides.get("memory_per_class") for row in recorded] == [None, 5]
    assert recorded[0] == known[recorded[0].key]
    then, now = (dict(row.figures) for row in (known[recorded[1].key], recorded[1]))
    for figures in (then, now):
        del figures["auc_maxlogit"], figures["auc_msp"]
    assert now == then
    assert replace(recorded[1], figures={}) == replace(known[recorded[1].key], figures={})


def _without_new_curves(row: Row) -> Row:
    new = ("cil_uncalibrated", "task_detection_uncalibrated")
    return replace(row, by_task={name: values for name, values in row.by_task.items() if name not in new})


def test_a_ledger_is_read_and_written_unchanged(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    shutil.copy(FOLDER / "ledger.jsonl", ledger)
    add(ledger, [])
    assert ledger.read_bytes() == (FOLDER / "ledger.jsonl").read_bytes()
    table = RENDERERS["markdown"](make_table("main", read(ledger), "cpu"))
    assert "CLOM" in table


def test_is_reported(run: Path) -> None:
    clom("report", run, "--threads", "1")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "78.8" in page, "its TIL"
    assert "32.5" in page, "its CIL"


def test_is_scored_as_by_the_earlier_version(run: Path) -> None:
    """Except for rejection: the threshold is conformal now, and was a quantile of the validation scores."""
    clom("scores", run, "--threads", "1")
    then, now = (
        flatten(json.loads(path.read_text(encoding="utf-8"))) for path in (FOLDER / "scores.json", run / "scores.json")
    )
    assert then.keys() <= now.keys()
    numbers = {name: value for name, value in then.items() if isinstance(value, float) and ".rejection." not in name}
    assert len(numbers) > 50
    assert {name: now[name] for name in numbers} == pytest.approx(numbers, abs=1e-4)


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    run = Path(shutil.copytree(FOLDER / "interrupted", tmp_path / "run"))
    first = (run / "metrics.jsonl").read_text(encoding="utf-8")
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    answers = load_model(run / "model.safetensors").blocks(images)
    clom("resume", run, "--threads", "1")
    assert (run / "metrics.jsonl").read_text(encoding="utf-8").startswith(first)
    method = load_model(run / "model.safetensors")
    assert len(method.tasks) == 5
    assert torch.equal(method.block(images, 0), answers[0])
    then, now = (json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in (FOLDER / "run", run))
    assert {name: now[name] for name in ("overrides", "parameters", "memory_bytes", "forgetting")} == {
        name: then[name] for name in ("overrides", "parameters", "memory_bytes", "forgetting")
    }


def test_a_finished_run_with_former_names_of_settings_is_recognised(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert b"mirror: false" in before["config.yaml"]
    small = ("data.test_per_class=8", "data.train_per_class=20", "net.channels=[6, 6, 8]", "net.hidden=12")
    again = ["run", "digits-5t", "--budget", "smoke", "--seed", "1", "--out", str(run), "--threads", "1"]
    for setting in small:
        again += ["--set", setting]
    clom(*again)
    assert (run / "model.safetensors").read_bytes() == before["model.safetensors"], "nothing is learned again"
    assert (run / "config.yaml").read_bytes() == before["config.yaml"]
    with pytest.raises(SystemExit, match="2"):
        main([*again, "--set", "mirror=true"])


def test_former_names_of_settings_are_accepted_on_the_command_line() -> None:
    former = {"memory_fit.cross": 0.1, "mirror": True}
    config = resolve("cifar10-5t", "clom", "cpu", overrides=former)
    assert config.settings["memory_fit"]["cross_task"] == 0.1
    assert config.overrides == {"memory_fit.cross_task": 0.1, "flip_tta": True}
