"""`clom new`: what it writes passes its check as it is, runs by the printed command, and overwrites nothing."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path
from typing import get_args

import pytest

from clom import machine
from clom.api import load_stream
from clom.cli import main
from clom.cli.new import Kind, template
from clom.data.sources import DataSettings
from clom.experiments.catalogue import ExperimentFile
from clom.experiments.run import RunResult
from clom.reporting.figures import run_overview as figures
from clom.testing import check_stream

TINY = ["data.train_per_class=12", "data.test_per_class=4", "data.classes_per_task=null", "data.sizes=[2, 2]"]
SETTINGS = [f"--set={text}" for text in (*TINY, "net.channels=[6, 6, 8]", "net.hidden=12")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", no_picture)
    return tmp_path


def no_picture(made: RunResult) -> list[Path]:
    return [made.folder / "figure.svg", made.folder / "figure.png"]


def clom(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def commands(text: str) -> list[list[str]]:
    """What is printed to be typed."""
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("kind", sorted({*get_args(Kind)} - {"experiment"}))
def test_what_is_written_passes_its_check(kind: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clom("new", kind, "own-thing") == 0
    check, _ = commands(capsys.readouterr().out)
    assert check == ["python", "own_thing.py"]
    text = (elsewhere / "own_thing.py").read_text()
    assert "OwnThing" in text
    assert not any(left in text.lower() for left in (f"my_{kind}", f"my-{kind}", f"my{kind}"))
    runpy.run_path("own_thing.py", run_name="__main__")
    assert f"own-thing keeps the contract of a {kind}" in capsys.readouterr().out


def test_an_experiment_is_a_stream_and_runs(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clom("new", "experiment", "own-thing") == 0
    (run,) = commands(capsys.readouterr().out)
    assert run == ["clom", "run", "own-thing.yaml", "--budget", "smoke"]
    assert "my-experiment" not in (elsewhere / "own-thing.yaml").read_text()
    stream = load_stream("own-thing.yaml", "smoke")
    check_stream(stream)
    assert [task.n_classes for task in stream] == [3, 2]
    assert clom(*run[1:], "--method=finetune") == 0
    assert clom("record", "runs/own-thing-finetune-smoke-s0", "--ledger=my-ledger.jsonl") == 0
    capsys.readouterr()
    assert clom("table", "--ledger=my-ledger.jsonl", "--experiment=own-thing", "--budget=smoke") == 0
    assert "Fine-tuning" in capsys.readouterr().out


def test_everything_that_an_experiment_may_say_is_shown() -> None:
    text = template("experiment", ".yaml", "x", "X", Path("x.yaml"))
    fields = {*ExperimentFile.model_fields, *DataSettings.model_fields} - {"size", "train_per_class", "test_per_class"}
    assert [name for name in fields if f"{name}:" not in text] == []


def test_the_printed_commands_work(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "a folder").mkdir()
    assert clom("new", "method", "first", "--out", "a folder/first try.py") == 0
    _, run = commands(capsys.readouterr().out)
    assert clom(*run[1:], *SETTINGS, "--out=here") == 0
    capsys.readouterr()
    assert clom("new", "score", "second") == 0
    _, scores = commands(capsys.readouterr().out)
    words = ["here" if word == "RUN" else word for word in scores[1:]]
    assert clom(*words, "--plugin", "a folder/first try.py") == 0
    assert "second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("score", "Mine"), "'Mine' is not a valid name: use lower-case letters, digits, dashes and underscores"),
        (("score", "3d"), "is not a valid name"),
        (("method", "a--b"), "such as my-method"),
        (("score", "mine", "--out", "nowhere/mine.py"), "no folder nowhere"),
        (("score", "mine", "--out", "mine.txt"), "should end in .py"),
        (("experiment", "mine", "--out", "mine.py"), "should end in .yaml"),
        (("scroe", "mine"), "scroe"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], told: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clom("new", *arguments) == 2
    assert told in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []


def test_names_with_underscores(elsewhere: Path) -> None:
    assert clom("new", "experiment", "my_experiment") == 0
    assert clom("new", "score", "my_own_score") == 0
    assert sorted(path.name for path in elsewhere.iterdir()) == ["my_experiment.yaml", "my_own_score.py"]
    assert 'register_score("my_own_score")\nclass MyOwnScore(' in (elsewhere / "my_own_score.py").read_text()


def test_nothing_is_overwritten(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "mine.py").write_text("precious")
    assert clom("new", "score", "mine") == 2
    assert "mine.py already exists and was not changed" in capsys.readouterr().err
    assert (elsewhere / "mine.py").read_text() == "precious"
