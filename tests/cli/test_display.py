"""Progress of a run in plain lines."""

from __future__ import annotations

import pytest

from clom.cli.console import Console
from clom.cli.display import Display, duration
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
