"""`clom list`: one line each at 80 columns with whole names, everything on request, and JSON for programs."""

from __future__ import annotations

import json

import pytest

from clom.cli import main
from clom.cli.list import ROWS
from clom.methods.registry import BUILT_IN


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["list", *arguments])
    assert not end.value.code
    return capsys.readouterr().out


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.usefixtures("narrow")
def test_methods_fit_a_screen_and_their_names_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "methods").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:-1]] == list(BUILT_IN)
    assert any(line.rstrip().endswith("…") for line in lines), "descriptions are cut, names are not"
    assert "--long" in lines[-1]


@pytest.mark.usefixtures("narrow")
def test_long_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = listed(capsys, "methods", "--long")
    assert "…" not in shown
    assert all(name in shown for name in BUILT_IN)
    assert "This is RPS-Net (2019), not A-RPS (2020)" in " ".join(shown.split())


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = listed(capsys, "methods")
    assert "…" not in shown
    assert all(info.title in shown for info in BUILT_IN.values())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    everything = json.loads(listed(capsys, "--json"))
    assert list(everything) == list(ROWS)
    methods = {row["name"]: row for row in everything["methods"]}
    assert methods["clom"]["stores_samples"] is True
    assert methods["finetune"]["stores"] == "nothing"
    assert methods["a-rps"]["deviations"]
    assert len(methods["hat"]["numbers_in_paper"]) == 6
    assert all(row["name"] and row["description"] and row["from"] for rows in everything.values() for row in rows)
    assert list(json.loads(listed(capsys, "budgets", "--json"))) == ["budgets"]
