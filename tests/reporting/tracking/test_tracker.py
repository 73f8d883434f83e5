"""Trackers: what they get, that a failing one never stops a run, and the real ones where they are installed."""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clom import machine
from clom.cli import main
from clom.errors import UserError
from clom.reporting.figures import run_overview
from clom.reporting.tracking import tracker as trackers
from clom.reporting.tracking.mlflow import MLflow
from clom.reporting.tracking.run_curves import auc_picture
from clom.reporting.tracking.tensorboard import TensorBoard
from clom.reporting.tracking.tracker import (
    GuardedTrackers,
    TrackedRun,
    check_trackers,
    open_trackers,
    trackers_of,
)
from clom.reporting.tracking.wandb import WeightsAndBiases

QUICK = [
    *("run", "digits-5t", "--budget=smoke", "--threads=1", "--set=data.train_per_class=8"),
    *("--set=data.test_per_class=3", "--set=data.classes_per_task=null", "--set=data.sizes=[2, 2, 2]"),
    *("--set=net.channels=[4, 4, 6]", "--set=net.hidden=8", "--set=learning.plan.epochs=1"),
]
GREY = np.full((4, 6, 3), 128, dtype=np.uint8)


class Recorder:
    """A tracker that remembers, and fails when it is told to."""

    made: list[Recorder]

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.calls, self.fail = run, list[tuple[Any, ...]](), ""
        type(self).made.append(self)

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fail:
            raise RuntimeError("no\nnetwork")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._called("scalars", dict(values), step)

    def picture(self, name: str, pixels: Any, step: int) -> None:
        self._called("picture", name, pixels.shape, step)

    def close(self) -> None:
        self._called("close")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """In place of TensorBoard."""
    Recorder.made = []
    module = types.ModuleType("tracker_for_tests")
    module.Recorder = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tracker_for_tests", module)
    monkeypatch.setitem(trackers.PLACES, "tensorboard", "tracker_for_tests:Recorder")
    monkeypatch.setattr(trackers, "require", lambda extra, purpose: None)
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(run_overview, "draw_run", lambda result: [result.folder, result.folder])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which commands change
    return Recorder


def clom(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_a_tracker_gets_curves_accuracies_and_the_auc_grid(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert clom(*QUICK, "--out=here", "--track=tensorboard") == 0
    (made,) = recorder.made
    assert (made.run.name, made.run.folder) == ("here", Path("here"))
    assert made.run.settings["settings.learning.plan.epochs"] == 1
    curves = [call for call in made.calls if call[0] == "scalars" and "loss/features" in call[1]]
    assert curves
    assert {"rate/features", "s", "gates open/conv1"} <= set(curves[0][1])
    results = {call[2]: call[1] for call in made.calls if call[0] == "scalars" and "accuracy/CIL" in call[1]}
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert sorted(results) == [1, 2, 3]
    assert results[3]["accuracy/CIL"] == pytest.approx(100 * summary["cil"])
    assert results[3]["accuracy/TIL"] == pytest.approx(100 * summary["til"])
    assert {"TIL by task/3", "CIL by task/1", "units in use/conv1", "time/minutes"} <= set(results[3])
    assert [call[1::2] for call in made.calls if call[0] == "picture"] == [("AUC grid", 2), ("AUC grid", 3)]
    assert made.calls[-1] == ("close",)
    two, three = (auc_picture(tmp_path / "here", n_tasks) for n_tasks in (2, 3))
    assert two.dtype == np.uint8
    assert two.shape[2] == 3
    assert len(np.unique(two)) > 50, "it is not blank"
    assert two.shape != three.shape or not np.array_equal(two, three)


@pytest.mark.parametrize("call", ["scalars", "picture", "close"])
def test_a_failing_tracker_never_stops_a_run(
    call: str,
    recorder: type[Recorder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    real = recorder.__init__

    def failing(self: Recorder, run: TrackedRun) -> None:
        real(self, run)
        self.fail = call

    monkeypatch.setattr(recorder, "__init__", failing)
    assert clom(*QUICK, "--out=here", "--track=tensorboard") == 0
    said = capsys.readouterr().err
    assert said.count("tensorboard failed and gets no more curves; the run goes on. no network") == 1
    assert (tmp_path / "here" / "summary.json").exists()
    assert (tmp_path / "here" / "progress.jsonl").exists()
    (made,) = recorder.made
    assert [name for name, *_ in made.calls].count(call) == 1, "it is not asked again"


@pytest.mark.parametrize("problem", [ImportError("no module"), SystemExit(1), OSError("no space")])
def test_a_tracker_that_cannot_be_opened(problem: BaseException) -> None:
    def opener() -> Recorder:
        raise problem

    Recorder.made = []
    other = Recorder(TrackedRun("a", Path("a"), {}))
    guarded = GuardedTrackers({"bad": opener, "good": lambda: other})
    with pytest.warns(UserWarning, match="bad failed"):
        guarded.scalars({"a": 1.0}, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guarded.scalars({}, 2)
        guarded.scalars({"a": 2.0}, 3)
        guarded.close()
    assert guarded.names == []
    assert other.calls == [("scalars", {"a": 1.0}, 1), ("scalars", {"a": 2.0}, 3), ("close",)]


def test_a_drawing_that_fails_stops_nothing() -> None:
    Recorder.made = []
    guarded = GuardedTrackers({"one": lambda: Recorder(TrackedRun("a", Path("a"), {}))})

    def draw() -> Any:
        raise ValueError("no scores")

    with pytest.warns(UserWarning, match="no scores"):
        guarded.picture("grid", draw, 1)


def test_a_resumed_run_keeps_its_trackers(tmp_path: Path) -> None:
    assert trackers_of(tmp_path) == []
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "wandb.id").write_text("a")
    assert trackers_of(tmp_path) == ["tensorboard", "wandb"]


def test_trackers_that_do_not_exist_or_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"There is no tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--track wandb needs wandb\. Install with: pip install wandb"):
        check_trackers(["wandb"])


# --- the real ones ---------------------------------------------------------------------------------------------------


def run_in(folder: Path) -> TrackedRun:
    folder.mkdir(exist_ok=True)
    return TrackedRun("digits", folder, {"seed": 0, "net.kind": "conv"})


def test_tensorboard_files_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(run_in(tmp_path))
    for step in range(3):
        tracker.scalars({"loss/features": 2.0 - step}, step)
    tracker.picture("AUC grid", GREY, 2)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/features")] == [(0, 2.0), (1, 1.0), (2, 0.0)]
    (picture,) = events.Images("AUC grid")
    assert (picture.height, picture.width) == (4, 6)


def test_wandb_writes_offline_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for step in range(2):
        tracker = WeightsAndBiases(run_in(tmp_path))
        tracker.scalars({"loss/features": 1.0}, step)
        tracker.picture("AUC grid", GREY, 1)
        tracker.close()
    number = (tmp_path / "wandb.id").read_text().strip()
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{number}"))


def test_mlflow_stores_curves_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    for step in range(2):
        tracker = MLflow(run_in(tmp_path))
        tracker.scalars({"loss/features": 1.0 + step}, step)
        tracker.picture("AUC grid", GREY, step)
        tracker.close()
    number = (tmp_path / "mlflow.id").read_text().strip()
    history = mlflow.MlflowClient().get_metric_history(number, "loss/features")
    assert [(point.step, point.value) for point in history] == [(0, 1.0), (1, 2.0)]


class FakeWandb(types.ModuleType):
    """As much of wandb as is used."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.Settings = dict
        self.Image = lambda pixels: ("image", pixels.shape)

    def init(self, **options: Any) -> FakeWandb:
        self.inits.append(options)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.logged.append({"finished": True})


def test_what_wandb_is_called_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        tracker = WeightsAndBiases(run_in(tmp_path))
    tracker.scalars({"s": 1.0}, 7)
    tracker.picture("AUC grid", GREY, 2)
    tracker.close()
    first, second = fake.inits
    assert (first["mode"], first["project"], first["dir"]) == ("offline", "clom", str(tmp_path))
    assert first["config"] == {"seed": 0, "net.kind": "conv"}
    assert first["id"] == second["id"] == (tmp_path / "wandb.id").read_text().strip(), "one run, also if it is resumed"
    assert fake.logged == [
        {"s": 1.0, "step": 7},
        {"AUC grid": ("image", (4, 6, 3)), "step": 2},
        {"finished": True},
    ]
    monkeypatch.setenv("WANDB_MODE", "online")
    WeightsAndBiases(run_in(tmp_path))
    assert fake.inits[-1]["mode"] == "online"


class FakeMlflow(types.ModuleType):
    """As much of MLflow as is used."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[Any, ...]] = []
        self.info = types.SimpleNamespace(run_id="number-1")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*words: Any, **options: Any) -> FakeMlflow:
            self.calls.append((name, *words, options))
            return self

        return call


def test_what_mlflow_is_called_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    tracker = MLflow(run_in(tmp_path))
    tracker.scalars({"s": 1.0}, 7)
    tracker.close()
    assert fake.calls == [
        ("set_experiment", "clom", {}),
        ("start_run", {"run_name": "digits"}),
        ("log_params", {"seed": "0", "net.kind": "conv"}, {}),
        ("log_metrics", {"s": 1.0}, {"step": 7, "synchronous": False}),
        ("flush_async_logging", {}),
        ("end_run", {}),
    ]
    fake.calls.clear()
    MLflow(run_in(tmp_path))
    assert fake.calls == [("set_experiment", "clom", {}), ("start_run", {"run_id": "number-1"})]


def test_every_tracker_in_the_table_exists(tmp_path: Path) -> None:
    kinds = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
    for name, kind in kinds.items():
        assert trackers.PLACES[name] == f"{kind.__module__}:{kind.__name__}"
    assert open_trackers(["mlflow", "wandb", "mlflow"], run_in(tmp_path)).names == ["mlflow", "wandb"]
