"""The program that `make dist` runs against the wheel works in the checkout."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parents[2] / "release" / "public_api.py"), run_name="__main__")
    assert re.fullmatch(r"clom [\d.]+: TIL [\d.]+, estimator [\d.]+\n", capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
