"""Progress of a run, in plain lines and beside a bar."""

from __future__ import annotations

import io
import re
import time

import pytest

from clom.cli.console import Console
from clom.cli.display import Display, LessonDisplay, beside_bar, duration
from clom.evaluation.metrics import ClassIncremental, Evaluation
from clom.experiments.task_result import TaskResult
from clom.learning.progress import Progress


def evaluated(n_tasks: int, capacity: float) -> TaskResult:
    way = ClassIncremental(0.5, [0.5] * n_tasks, 0.6, 0.7, 0.7, [[1.0]])
    return TaskResult(
        Evaluation(n_tasks, 0.75, [0.75] * n_tasks, {"none": way}), 0.5, 0.9, {"conv1": capacity, "fc": 0.1}
    )


def shown(*events: Progress | TaskResult, pause: float = 0.0) -> list[str]:
    console = Console(record=True, width=200, force_terminal=False)
    with Display(console, 2, seconds_between_lines=pause) as display:
        for event in events:
            if isinstance(event, Progress):
                display.step(event)
            else:
                display.task_done(event, 2)
    return console.export_text().splitlines()


def test_progress_tells_task_epoch_loss_accuracy_and_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(
        Progress(0, "features", 1, 4, 1, 2, 1.25),
        Progress(0, "features", 4, 4, 2, 2, 0.5),
        evaluated(1, 0.5),
        Progress(1, "head", 1, 1, 1, 1, float("nan")),
    )
    capsys.readouterr()
    assert lines[0].split("  ")[1].startswith("task 1/2, features, epoch 1/2, loss 1.250")
    assert lines[1].strip().startswith("46%")
    assert "left" in lines[1]
    assert "TIL 75.0, CIL 50.0" in lines[2]
    assert lines[3].startswith("100%")
    assert "so far TIL 75.0 CIL 50.0" in lines[3]
    assert "nan" not in lines[3]


def test_lines_come_now_and_then_only(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(*(Progress(0, "features", step, 100, 1, 1, 1.0) for step in range(1, 101)), pause=3600.0)
    capsys.readouterr()
    assert lines == []


def test_a_full_layer_is_named_while_it_matters(capsys: pytest.CaptureFixture[str]) -> None:
    full = shown(evaluated(1, 0.995))
    assert any(line.startswith("Warning") and "conv1" in line and "fc" not in line for line in full)
    assert not any("Warning" in line for line in shown(evaluated(1, 0.9)))
    assert not any("Warning" in line for line in shown(evaluated(2, 0.995)))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (120, "2.0 min"), (7200, "2.0 h"), (10 * 86400, "10 days")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- in a terminal -------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal of 80 columns that remembers what was drawn."""

    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, *events: Progress | TaskResult, lesson: str | None = None) -> str:
    """The last line that shows a bar."""
    monkeypatch.setenv("TERM", "xterm")
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    console = Console(file=Terminal(), width=80, force_terminal=True, color_system=None, legacy_windows=False)
    with LessonDisplay(console, lesson) if lesson else Display(console, 5) as display:
        for event in events:
            if isinstance(event, Progress):
                display.step(event)
            else:
                display.task_done(event, 5)
            assert display._bar is not None
            display._bar.refresh()
    file = console.file
    assert isinstance(file, Terminal)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", file.getvalue())]
    assert max(map(len, lines)) <= 80
    return next(line for line in reversed(lines) if "%" in line)


def test_bar_percentage_and_time_left_stay_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Progress(task, "features", done, 4, done, 4, 4.1234) for task in range(2) for done in (1, 4)]
    line = drawn(monkeypatch, *steps[:2], evaluated(1, 0.5), *steps[2:])
    assert re.match(r"[━╸╺ ]{20}\s+38% \d+ s left, task 2/5, features, epoch 4/4, loss 4\.123", line), line


def test_a_lesson_with_a_long_name_keeps_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Progress(3, "features", done, 4, done, 4, 4.1234) for done in (1, 2)]
    line = drawn(monkeypatch, *steps, lesson="flowers of the northern and southern Alps in spring")
    assert re.match(r"[━╸╺ ]{20}\s+46% \d+ s left, learning 'flowers of the north.*…$", line), line


def test_what_does_not_fit_beside_the_bar_is_left_out() -> None:
    console = Console(width=47)
    assert beside_bar(console, "12 s left", "task 1/5", "loss 4.1") == "12 s left, task 1/5"
    assert beside_bar(console, "12 s left", "", "task 1/5, features, epoch 3/9", "x") == "12 s left, x"
    assert beside_bar(console, "far too much for so few columns") == "far too much for so…"
