"""`clom watch`: what the files of a run tell, at every stage of the run, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clom.cli import main
from clom.cli.console import Console
from clom.cli.watch import chart, read_state, view

NOW = 1_800_000_000.0


def sample(step: int, **changes: Any) -> str:
    line = {"time": NOW - 100 + step, "step": step, "task": 1, "phase": "features", "done": step, "total": 200}
    values = {"loss/features": 5.0 - step / 100, "rate/features": 0.002, "s": 350.0, "gates open/conv1": 0.25}
    return json.dumps(line | {"epoch": 3, "epochs": 9, "values": values} | changes)


def result(til: float, cil: float, used: float) -> str:
    return json.dumps({"til": til, "by_calibration": {"memory": {"cil": cil}}, "capacity": {"conv1": used}})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in its second of five tasks."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 0\n")
    lines = [json.dumps({"time": NOW - 100, "n_tasks": 5}), *(sample(step) for step in range(1, 101))]
    (folder / "progress.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "metrics.jsonl").write_text(result(1.0, 0.98, 0.5) + "\n")
    return folder


def shown(folder: Path, width: int = 80, now: float = NOW, encoding: str = "utf-8") -> str:
    with (folder / "out").open("w", encoding=encoding) as file:
        console = Console(file=file, width=width, record=True)
        console.print(view(read_state(folder), console, now))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    return text


def test_a_running_run_at_80_columns(run: Path) -> None:
    text = shown(run)
    # 0.46 of the second of five tasks, in 100 s since the process began there: 71% to go at 9.2% in 99 s
    assert "29%  task 2/5, features, epoch 3/9, 12.8 min left" in text
    assert "loss, features: 4 (highest 4.99, lowest 4)" in text
    assert "rate 0.002   s 350   gates open: conv1 25%" in text
    assert "TIL" in text
    assert "98.0" in text
    assert "conv1" in text
    assert "50%" in text
    assert "█" in text
    assert len(text.splitlines()) <= 24, "it fits the smallest screen"


def test_every_terminal_can_show_it(run: Path) -> None:
    text = shown(run, encoding="ascii")
    assert "█" not in text
    assert "#" in text
    text.encode("ascii")


def test_a_run_that_was_stopped_finished_or_has_not_begun(run: Path) -> None:
    assert "'clom resume" in shown(run, now=NOW + 600)
    (run / "summary.json").write_text("{}")
    assert "Finished." in shown(run)
    (run / "summary.json").unlink()
    (run / "progress.jsonl").unlink()
    (run / "metrics.jsonl").write_text(result(1.0, 0.98, 0.5) + "\n" + result(1.0, 0.98, 0.5)[:20])
    assert "Training has not begun" in shown(run)


def test_it_ends_with_the_run(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            (run / "summary.json").write_text("{}")

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(SystemExit) as end:
        main(["watch", str(run), "--every", "2"])
    assert not end.value.code
    assert waited == [2.0, 2.0, 2.0]
    assert "Finished." in capsys.readouterr().out


def test_without_a_terminal_it_is_shown_once_and_without_torch(run: Path) -> None:
    begin = f"import sys; from clom.cli import main\ntry: main(['watch', {str(run)!r}])"
    code = f"{begin}\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "False"
    assert "conv1" in done.stdout


def test_charts() -> None:
    assert chart([1, 4, 8], 10, 1) == ["▁▄█"]
    assert chart([-1, 2, 6], 10, 1) == ["▁▄█"]
    assert chart([0, 15], 10, 2) == [" █", "▁█"]
    assert chart([8, 8, 0, 0], 2, 1) == ["█▁"], "each column is a mean"
    assert chart([3.0, 3.0], 10, 2) == ["  ", "▁▁"]
