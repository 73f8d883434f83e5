"""The record of a run's progress: few lines however long it takes, the same steps after an interruption, no harm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clom.experiments.config import resolve
from clom.experiments.run import execute
from clom.experiments.run_folder import progress_file
from clom.experiments.run_folder.progress_file import NAME, ProgressFile, Sample, StepCounter, read_progress
from clom.learning.progress import Progress
from clom.methods.clom import Clom

TINY = {
    "data.train_per_class": 8,
    "data.test_per_class": 3,
    "data.classes_per_task": None,
    "data.sizes": [2, 2],
    "net.channels": [4, 4, 6],
    "net.hidden": 8,
    "learning.plan.epochs": 2,
    "learning.head.iterations": 3,
}


@pytest.fixture
def method() -> Clom:
    config = resolve("digits-5t", "clom", "smoke", 0, TINY)
    made = config.make_method((1, 8, 8))
    assert isinstance(made, Clom)
    return made


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for name in ("monotonic", "time"):
            monkeypatch.setattr(time, name, lambda: self.now)


def test_a_run_records_losses_rates_s_and_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_file, "_PAUSE", 0.0)
    monkeypatch.setattr(progress_file, "_SHARE_OF_TIME", 0.0)
    config = resolve("digits-5t", "clom", "smoke", 0, TINY)
    passed_on: list[tuple[dict[str, float], int]] = []
    execute(
        config,
        config.data.stream(None, 0),
        tmp_path / "run",
        on_values=lambda values, step: passed_on.append((dict(values), step)),
    )
    recorded = read_progress(tmp_path / "run")
    assert recorded.n_tasks == 2
    features = [sample for sample in recorded.samples if sample.progress.phase == "features"]
    groups = {"gates open/conv1", "gates open/conv2", "gates open/conv3", "gates open/fc"}
    assert {"loss/features", "rate/features", "rate/features/2", "s", *groups} == set(features[0].values)
    assert features[0].values["s"] == pytest.approx(1 / 700), "the first step of a sweep"
    assert all(0 <= features[0].values[group] <= 1 for group in groups)
    steps = [sample.step for sample in recorded.samples]
    assert steps == sorted(steps), "counted over phases and tasks"
    assert {sample.progress.task for sample in recorded.samples} == {0, 1}
    assert passed_on[0] == ({}, 0), "so that a tracker opens before the training"
    assert passed_on[1:] == [(dict(sample.values), sample.step) for sample in recorded.samples]


def test_long_runs_have_few_lines(tmp_path: Path, method: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    file = ProgressFile(tmp_path, method, 5)
    for step in range(1, 20_001):  # five steps a second for more than an hour
        clock.now += 0.2
        file.step(Progress(0, "features", step, 20_000))
    n_lines = len(read_progress(tmp_path).samples)
    assert 1_000 < n_lines < 4_000


def test_the_time_left_is_that_of_the_last_process(
    tmp_path: Path, method: Clom, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    for began, seconds in ((0, 50), (50, 10)):  # the second process is five times as fast
        file = ProgressFile(tmp_path, method, 1)
        assert read_progress(tmp_path).seconds_left() is None
        for done in range(began + 1, began + 26):
            clock.now += seconds / 25
            file.step(Progress(0, "learning", done, 100))
        clock.now += 86_400
    assert read_progress(tmp_path).seconds_left() == pytest.approx(25 * 0.4)


def test_steps_that_are_repeated_after_an_interruption_count_once() -> None:
    count = StepCounter()
    assert [count(Progress(0, "features", done, 3)) for done in (1, 2, 3)] == [1, 2, 3]
    assert [count(Progress(0, "head", done, 2)) for done in (1, 2)] == [4, 5]
    assert [count(Progress(0, "head", done, 2)) for done in (1, 2)] == [6, 7], "the same phase once more"
    assert [count(Progress(1, "features", done, 3)) for done in (1, 2)] == [8, 9]
    resumed = StepCounter(Sample(0.0, 9, Progress(1, "features", 2, 3), {}))
    assert [resumed(Progress(1, "features", done, 3)) for done in (1, 2, 3)] == [8, 9, 10]
    assert resumed(Progress(1, "head", 1, 2)) == 11


def test_damaged_lines_are_left_out(tmp_path: Path, method: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ProgressFile(tmp_path, method, 3).step(Progress(0, "features", 1, 4))
    path = tmp_path / NAME
    good = path.read_text().splitlines()[1]
    wrong = [json.dumps(json.loads(good) | change) for change in ({"done": 9}, {"total": "x"}, {"values": [1]})]
    path.write_text("\n".join(['{"n_tasks": 3}', "[1]", *wrong, good, good[:20]]))  # a killed process left the last
    clock.now += 10
    ProgressFile(tmp_path, method, 3).step(Progress(0, "features", 2, 4))
    recorded = read_progress(tmp_path)
    assert [sample.progress.done for sample in recorded.samples] == [1, 2]
    assert recorded.session == 1
    assert read_progress(tmp_path / "nowhere").samples == []


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, method: Clom) -> None:
    (tmp_path / NAME).mkdir()
    values: list[int] = []
    with pytest.warns(UserWarning, match=r"progress\.jsonl cannot be written .*; the run goes on"):
        file = ProgressFile(tmp_path, method, 3, lambda _, step: values.append(step))
    file.step(Progress(0, "features", 1, 4))
    assert values == [0, 1], "trackers get their values all the same"
