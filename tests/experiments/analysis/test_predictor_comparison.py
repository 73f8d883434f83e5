"""The comparison of task predictors on a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clom.data.stream import Stream
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.analysis.predictor_comparison import compare_predictors
from clom.experiments.config import resolve
from clom.methods.families.masked import MaskedMethod
from clom.storage.model_file import load_model, save_model
from experiments.analysis.test_ood_scores import TINY


def trained(name: str = "clom", **settings: Any) -> tuple[MaskedMethod, Stream]:
    config = resolve("digits-5t", name, "smoke", 0, TINY | {"memory_per_class": 1} | settings)
    stream = config.data.stream(None, 0)
    method = config.make_method(stream.image_shape)
    for task in stream:
        method.learn(task)
    assert isinstance(method, MaskedMethod)
    return method, stream


@pytest.fixture(scope="module")
def clom() -> tuple[MaskedMethod, Stream]:
    return trained()


def test_every_predictor_is_compared(clom: tuple[MaskedMethod, Stream]) -> None:
    method, stream = clom
    results = compare_predictors(method, stream, {"strangers": stream.tests[0]})
    assert {"argmax", "calibration", "scale", "wptp", "more", "row", "tpl", "tpl-max", "fusion"} <= set(results)
    assert not {"product", "task-then-class"} & set(results), "they need an OOD score"
    book = Scorebook(stream.tests)
    book.update(method)
    paper = evaluate(book, method.calibrations()).by_calibration
    assert results["argmax"].test.cil == pytest.approx(paper["none"].cil)
    assert results["calibration"].test.cil == pytest.approx(paper["memory"].cil)
    assert results["calibration"].test.task_detection == pytest.approx(paper["memory"].task_detection)
    til = evaluate(book, method.calibrations()).til
    for result in results.values():
        assert til + result.test.task_detection - 1 <= result.test.cil + 1e-12
        assert result.test.cil <= min(til, result.test.task_detection) + 1e-12
        assert 0 <= result.external["strangers"].auc <= 1
    assert method.settings.predictor is None, "the method is left as it was"


def test_what_predictors_keep_is_counted(clom: tuple[MaskedMethod, Stream]) -> None:
    method, stream = clom
    results = compare_predictors(method, stream, {})
    own = method.prediction.all_statistics()
    statistics = sum(4 * (part.means.numel() + part.covariance.numel() + part.usual.numel()) for part in own)
    assert results["mahalanobis"].statistics_bytes == statistics
    assert results["mahalanobis"].sample_bytes == 0
    assert results["argmax"].statistics_bytes == 0
    assert results["tpl"].sample_bytes == method.memory_bytes == 7 * 64
    assert results["fusion"].statistics_bytes > results["cross-task"].statistics_bytes, "its heads are counted too"


def test_stored_samples_do_not_judge(clom: tuple[MaskedMethod, Stream]) -> None:
    """With all validation images stored there are none left to judge by."""
    method, stream = clom
    assert compare_predictors(method, stream, {})["argmax"].validation is not None
    greedy, _ = trained(memory_per_class=1000)
    assert compare_predictors(greedy, stream, {})["argmax"].validation is None


def test_models_of_earlier_versions_get_the_statistics_they_would_have(
    clom: tuple[MaskedMethod, Stream], tmp_path: Path
) -> None:
    method, stream = clom
    expected = compare_predictors(method, stream, {})
    earlier, _ = trained(statistics=False)
    save_model(tmp_path / "model", earlier)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, MaskedMethod)
    assert loaded.prediction.n_bytes == 0
    assert compare_predictors(loaded, stream, {}) == expected
    for one, other in zip(method.prediction.all_statistics(), loaded.prediction.all_statistics(), strict=True):
        assert torch.equal(one.covariance, other.covariance)


def test_without_samples_only_predictors_that_need_none() -> None:
    method, stream = trained("hat", calibration="none")
    results = compare_predictors(method, stream, {})
    assert set(results) == {"argmax", "scale", "wptp", "more", "row-no-samples", "mahalanobis", "fusion-no-samples"}


def test_methods_without_a_network_per_task_are_left_out() -> None:
    config = resolve("digits-5t", "icarl", "smoke", 0, {"data.classes_per_task": None, "data.sizes": [2]})
    stream = config.data.stream(None, 0)
    method = config.make_method(stream.image_shape)
    method.learn(stream[0])
    assert compare_predictors(method, stream, {}) == {}
