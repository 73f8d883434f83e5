"""`clom report`, and how `clom demo` ends, as a person meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom import machine
from clom.cli import main
from clom.data import catalog
from clom.experiments import config as config_module
from clom.experiments.config import RunConfig, resolve
from clom.experiments.run import RunResult
from clom.reporting.figures import run_overview as figures


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def no_picture(made: RunResult) -> list[Path]:
    return [made.folder / "figure.svg", made.folder / "figure.png"]


def tiny() -> RunConfig:
    changes: dict[str, Any] = {"data.train_per_class": 8, "data.test_per_class": 3, "data.classes_per_task": None}
    changes |= {"data.sizes": [2, 2], "net.channels": [4, 4, 6], "net.hidden": 8, "learning.plan.epochs": 1}
    changes |= {"learning.head.iterations": 3}
    return resolve("digits-5t", "clom", "smoke", 0, changes)


def test_from_the_demo_to_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", no_picture)
    small = tiny()
    asked: list[tuple[object, ...]] = []

    def resolved(*arguments: object) -> RunConfig:
        asked.append(arguments)
        return small

    monkeypatch.setattr(config_module, "resolve", resolved)
    monkeypatch.setenv("COLUMNS", "100")
    assert exit_code("demo", "--out=here", "--budget=smoke") == 0
    assert asked[0] == ("digits-5t", "clom", "smoke", 0)
    assert f"Report: {Path('here') / 'report.html'} (" in capsys.readouterr().out.splitlines()[-1]
    page = (tmp_path / "here" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<img") > 0

    assert exit_code("report", "here", "--out", "sub/one.html") == 0
    assert (tmp_path / "sub" / "one.html").read_text(encoding="utf-8") == page
    capsys.readouterr()

    monkeypatch.setattr(catalog, "available", lambda name, folder=None: False)
    assert exit_code("report", "here") == 0
    assert "no example images of digits" in capsys.readouterr().out
    assert "<img" not in (tmp_path / "here" / "report.html").read_text(encoding="utf-8")

    (tmp_path / "here" / "summary.json").unlink()
    assert exit_code("report", "here") == 2
    assert "not finished" in capsys.readouterr().err


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    assert exit_code("report", "nowhere") == 2
    assert "nowhere is not the folder of a run" in capsys.readouterr().err
    assert exit_code("report") == 2
    assert "run" in capsys.readouterr().err.lower()
