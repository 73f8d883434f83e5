"""A method with nothing but what the contract asks for works everywhere; what it cannot do is refused in a sentence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import plugin_files
from clom.data.formats import read_digits
from clom.errors import UserError
from clom.estimator.classifier import ClomClassifier
from clom.experiments.analysis.recalibration import with_fewer_samples
from clom.experiments.config import resolve
from clom.experiments.run import execute
from clom.export.onnx import export_model
from clom.methods.registry import METHODS, register_method
from clom.photos.forget import forget
from clom.photos.predict import Predictor
from clom.photos.teach import teach
from clom.photos.thresholds import thresholds
from clom.photos.verify import verify
from clom.reporting.figures.run_details import draw_auc_grid, draw_capacity
from clom.reporting.report.page import write_report
from clom.serve.answers.active_model import load_active_model
from clom.serve.lessons.separation import separation
from clom.storage.describe import describe
from clom.storage.model_file import load_model, save_model
from methods.minimal import Minimal, minimal
from photos.pictures import SHAPE, coloured, pictures


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with plugin_files.clean(METHODS):
        register_method("minimal")(Minimal)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model file that was taught two tasks; beside it, as it was after the first."""
    path = tmp_path / "my.model"
    save_model(path, minimal(SHAPE))
    teach(path, lambda size: pictures("red", "green", count=10), "warm")
    shutil.copy(path, tmp_path / "before.model")
    teach(path, lambda size: pictures("blue", "grey", count=10), "cold")
    return path


def test_a_model_of_photos(path: Path) -> None:
    predict = Predictor(load_model(path))
    for name, task in (("red", "warm"), ("blue", "cold")):
        (answer,) = predict(coloured(name, 1, seed=9), false_rejection=0.0)
        assert (answer.best.class_name, answer.best.task, answer.unknown) == (name, task, False)
        assert predict(coloured(name, 1, seed=9), task)[0].belonging == {task: pytest.approx(answer.belonging[task])}
    assert all(answer.unknown for answer in predict(coloured("violet", 3)))
    assert [task["name"] for task in describe(path)["tasks"]] == ["warm", "cold"]
    assert set(thresholds(load_model(path), 0, [0.05])) == {0.05}
    with pytest.raises(UserError, match="minimal cannot forget"):
        forget(path, "warm")


def test_its_tasks_share_all_numbers_and_verify_says_so(path: Path) -> None:
    checks = verify(path, path.with_name("before.model"))
    assert [(check.task, check.verdict) for check in checks] == [("warm", "changed"), ("cold", "new")]
    assert [check.verdict for check in verify(path)] == ["changed", "identical"]


def test_served(path: Path) -> None:
    active = load_active_model(path, torch.device("cpu"))
    assert active.task_names == ["warm", "cold"]
    assert active.about["units"] == []
    assert active.about["rejection"]["held_out"] == 8
    assert separation(active.method) is None


def test_export_says_why_not(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="minimal cannot be exported"):
        export_model(tmp_path / "m.pt2", load_model(path))
    assert not (tmp_path / "m.pt2").exists()


def test_the_estimator() -> None:
    digits = read_digits().train
    rows = digits.labels < 4
    X, y = digits.pixels[rows][:200].flatten(1).numpy(), digits.labels[rows][:200].numpy()
    learner = ClomClassifier(method="minimal", classes_per_task=2, random_state=0).fit(X, y)
    assert learner.score(X, y) > 0.9
    with pytest.raises(ValueError, match="no threshold stays valid"):
        learner.belongs(X)


def test_a_run_and_its_report(tmp_path: Path) -> None:
    config = resolve("digits-5t", "minimal", "smoke")
    run = tmp_path / "run"
    execute(config, config.data.stream(None, 0), run)
    assert write_report([run], tmp_path / "report.html").n_bytes > 10_000
    assert all(figure.exists() for figure in draw_auc_grid(run, tmp_path))
    with pytest.raises(UserError, match="no gates"):
        draw_capacity(run, tmp_path)
    with pytest.raises(UserError, match="no samples for calibration"):
        with_fewer_samples(run, [1])
