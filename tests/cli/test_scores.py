"""`clom scores` as a person meets it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from clom import machine
from clom.cli import main
from clom.cli.scores import closing_lines, external_table, tasks_table
from clom.data import catalog
from clom.evaluation.metrics import Rejection
from clom.evaluation.task_prediction import Outcome
from clom.experiments.analysis.ood_scores import ScoreResult, ScoresReport
from clom.experiments.run import RunResult
from clom.reporting.figures import run_overview as figures


def result(auc: float, external: list[str]) -> ScoreResult:
    return ScoreResult(
        auc_validation=auc,
        auc=auc - 0.1,
        fpr95=1 - auc,
        aupr=1.0,
        rules={"task-then-class": Outcome(0.6, 0.5), "product": Outcome(1.0, 1.0)},
        external_auc=dict.fromkeys(external, auc),
        rejection=Rejection(0.05, 0.1, 0.04, dict.fromkeys(external, 1.0)),
    )


def report(*external: str) -> ScoresReport:
    return ScoresReport(
        experiment="mnist-5t",
        method="clom",
        budget="cpu",
        seed=0,
        til=0.99,
        best="rel. Mahalanobis",
        argmax={"memory": Outcome(0.9, 0.88)},
        scores={"MSP": result(0.8, list(external)), "rel. Mahalanobis": result(0.95, list(external))},
        external=dict.fromkeys(external, 1000),
        missing=["notmnist"],
        exact_memory=True,
    )


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_and_mark_the_best(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = report("fashion-mnist", "kmnist", "notmnist")
    console = Console(record=True, width=width)
    for table in (tasks_table(made), external_table(made)):
        table.padding = (0, 1 if width >= 100 else 0)
        console.print(table)
    capsys.readouterr()
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    msp, best = (next(line for line in text.splitlines() if name in line) for name in ("MSP", "rel. Mahalanobis"))
    cells = [cell.strip() for cell in best.split("│")[2:-1]]
    assert cells == ["95.0*", "85.0*", "5.0*", "100.0*", "60.0*", "50.0*", "100.0*", "100.0*"]
    assert [cell.strip() for cell in msp.split("│")[2:5]] == ["80.0", "70.0", "20.0"]


def test_the_closing_lines_say_what_was_chosen_how_and_what_is_missing() -> None:
    text = "\n".join(closing_lines(report()))
    assert "Best score by AUC on validation images: rel. Mahalanobis; on test images AUC 85.0, CIL 50.0" in text
    assert "88.0 (calibration: memory)" in text
    assert "Data sets not found: notmnist" in text
    assert "at most 5 percent" in text
    assert "Note" not in text
    lacking = dataclasses.replace(report(), left_out={"ViM": ["features", "linear_head"], "kNN": ["features"]})
    assert (
        "Scores left out: clom does not provide what they need: ViM (needs features for each task and a linear head on "
        "its features), kNN (needs features for each task)." in closing_lines(lacking)
    )
    other = "\n".join(closing_lines(dataclasses.replace(report(), missing=[], exact_memory=False)))
    assert "left out" not in other
    assert "not found" not in other
    assert "Note: this method's outputs for old tasks drift" in other


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def no_picture(made: RunResult) -> list[Path]:
    return [made.folder / "figure.svg", made.folder / "figure.png"]


def test_from_a_run_to_its_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOM_DATA", raising=False)
    monkeypatch.setattr(catalog, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", no_picture)
    monkeypatch.setenv("COLUMNS", "100")
    tiny = ["data.train_per_class=12", "data.test_per_class=4", "data.classes_per_task=null", "data.sizes=[2, 2]"]
    tiny += ["net.channels=[6, 6, 8]", "net.hidden=12", "learning.plan.epochs=1"]
    settings = [f"--set={text}" for text in tiny]
    assert exit_code("run", "digits-5t", "--method=hat", "--budget=smoke", "--out=here", *settings) == 0
    capsys.readouterr()
    assert exit_code("scores", "here", "--rejection", "0.1") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(name in out for name in ("MSP", "ODIN", "ReAct", "AUC", "FPR95", "AUPR", "TaskDR", "CIL"))
    assert "Data sets not found: fashion-mnist, kmnist, notmnist" in out
    stored = json.loads((tmp_path / "here" / "scores.json").read_text())
    assert stored["best"] in out
    assert stored["scores"]["MSP"]["rejection"]["wanted"] == 0.1
    (tmp_path / "own.py").write_text(
        "import clom\nclass Own(clom.Score):\n    def __call__(self, outputs): return outputs.block[:, 0]\n"
    )
    assert exit_code("scores", "here", "--score", "msp", "--score", "own.py:Own") == 0
    assert list(json.loads((tmp_path / "here" / "scores.json").read_text())["scores"]) == ["MSP", "own"]
    assert exit_code("scores", "here", "--score", "own.py:Mine") == 2
    assert "Own" in capsys.readouterr().err
    for wrong, told in (("kmnst", "kmnist"), ("digits", "learned")):
        assert exit_code("scores", "here", "--external", wrong) == 2
        assert told in capsys.readouterr().err
