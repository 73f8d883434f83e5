"""The docs page about networks: its code and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import plugin_files
from clom import machine
from clom.cli import main
from clom.nets.networks.registry import NETS
from clom.reporting.figures import run_overview as figures

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.S)
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in CODE:
        exec(block, names)
    expected = re.search(r"# (\{.*\})", CODE[2])
    assert expected
    assert capsys.readouterr().out.strip() == expected[1]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split("--set")[0])
def test_the_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", lambda made: [made.folder / "figure.svg", made.folder / "figure.png"])
    (tmp_path / "my_resnet.py").write_text(CODE[0], encoding="utf-8")
    assert CODE[0].startswith("# my_resnet.py\n")
    clom, *words = shlex.split(command)
    assert clom == "clom"
    with plugin_files.clean(NETS), pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
