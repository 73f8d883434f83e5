"""Exit codes as docs/errors.md has them: for every command, by a typical mistake, and where the disk is the problem."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clom.cli import COMMANDS, main

MISTAKES: dict[str, tuple[list[str], str]] = {
    "demo": (["--threads", "0"], "threads"),
    "run": (["digits-5x"], "Did you mean 'digits-5t'?"),
    "run, settings": (["digits-5t", "--set", "learning.plan.epochs=-1"], "learning.plan.epochs"),
    "run, file": (["digits-5t", "--config", "absent.yaml"], "absent.yaml"),
    "run, seed": (["digits-5t", "--budget", "smoke", "--seed", "9" * 30], "18 digits"),
    "run, network": (["digits-5t", "--budget", "smoke", "--set", "net.hidden=99999999999999"], "too large"),
    "run, folder": (["digits-5t", "--budget", "smoke", "--out", "file/run"], "file: "),
    "grid": (["absent.yaml"], "absent.yaml"),
    "grid, bomb": (["bomb.yaml"], "20000 values"),
    "record": (["absent"], "absent"),
    "scores": (["absent"], "absent"),
    "report": (["absent"], "absent"),
    "table": (["--ledger", "nonsense.jsonl"], "nonsense.jsonl"),
    "table, name": (["mian"], "main"),
    "figure": (["capacity", "absent"], "absent"),
    "results": (["--ledger", "nonsense.jsonl"], "nonsense.jsonl"),
    "list": (["everything"], "everything"),
    "import-authors": (["nonsense.jsonl"], "nonsense.jsonl"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nonsense.jsonl").write_text("nonsense\n")
    Path("file").write_text("")
    Path("bomb.yaml").write_text(
        "\n".join(["a: &a [x, x]", "b: &b [" + "*a, " * 200 + "]", "c: [" + "*b, " * 200 + "]"])
    )
    return tmp_path


def code(words: list[str]) -> object:
    try:
        main(words)
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_ends_with_2_and_one_message(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = MISTAKES[what]
    assert code([what.partition(",")[0], *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("clom: ")
    assert expected in " ".join(said.split())
    assert "Traceback" not in said
    assert len(said) < 2000


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_ends_with_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code([command, "--no-such-option", "x"]) == 2
    assert capsys.readouterr().err.startswith("clom: ")


def test_nothing_wrong_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert code(["list", "budgets"]) == 0
    assert code(["--help"]) == 0


@contextlib.contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_with_2_and_leaves_what_was_there(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"experiment": "digits-5t", "method": "clom", "budget": "cpu", "seed": 0}
    ledger = elsewhere / "ledger.jsonl"
    ledger.write_text(json.dumps(row) + "\n")
    (elsewhere / "page.md").write_text("old")
    with full_disk(100):
        assert code(["results", "--ledger", str(ledger), "--out", "page.md"]) == 2
    assert "too large" in capsys.readouterr().err  # what a system says at this limit
    assert (elsewhere / "page.md").read_text() == "old"
    assert not list(elsewhere.glob(".page*"))


def test_a_folder_that_cannot_be_written_ends_with_2(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = elsewhere / "ledger.jsonl"
    ledger.write_text(json.dumps({"experiment": "digits-5t", "method": "clom", "budget": "cpu", "seed": 0}) + "\n")
    assert code(["results", "--ledger", str(ledger), "--out", "file/page.md"]) == 2
    assert "file" in capsys.readouterr().err


def test_too_little_memory_ends_with_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(name: str) -> None:
        torch.empty(2**60)

    monkeypatch.setattr("clom.experiments.catalogue.read_experiment", exhausted)
    assert code(["list", "experiments"]) == 2
    assert "memory" in capsys.readouterr().err
