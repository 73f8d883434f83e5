"""Task predictors inside masked methods: statistics that never change, swapping, saving, forgetting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.export.graphs import make_graph
from clom.methods.clom import Clom
from clom.methods.families.base import LearnedTask
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.task_network import TaskNetwork
from clom.methods.registry import method_class
from clom.ood.predictors.base import TaskPredictor, decided
from clom.ood.registry import PREDICTORS
from clom.photos.predict import Predictor
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method, tiny_stream
from methods.test_clom import TINY, quick

FITTED = [name for name in PREDICTORS.names() if "score" not in PREDICTORS.get(name).needs]


@pytest.fixture(scope="module")
def stream() -> Stream:
    return tiny_stream()


def learned(stream: Stream, predictor: str | None = "fusion", n_tasks: int = 3) -> Clom:
    method = Clom(TINY, quick(predictor=predictor), stream.image_shape, seed=0)
    for task in stream[:n_tasks]:
        method.learn(task)
    return method


@pytest.fixture(scope="module")
def fused(stream: Stream) -> Clom:
    return learned(stream)


def test_the_methods_contract_holds_with_a_predictor() -> None:
    check_method(lambda seed: Clom(TINY, quick(predictor="fusion"), (1, 8, 8), seed))


@pytest.mark.parametrize("name", FITTED)
def test_swapping_needs_no_training_data(name: str, fused: Clom, stream: Stream, tmp_path: Path) -> None:
    """A stored model with another predictor decides as one that was trained with that predictor."""
    save_model(tmp_path / "model", fused)
    stored = load_model(tmp_path / "model")
    assert isinstance(stored, MaskedMethod)
    stored.use_predictor(name)
    trained = learned(stream, name)
    for test in stream.tests:
        ways = [method.decisions()[name] for method in (stored, trained)]
        outputs = [method.outputs(test.pixels, task, True) for method in (stored,) for task in range(3)]
        one, other = (decided(way, outputs) for way in ways)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["fusion", "tpl", "row", "mahalanobis"])
def test_a_loaded_model_decides_with_the_same_bits(name: str, stream: Stream, tmp_path: Path) -> None:
    method = learned(stream, name)
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    book, again = Scorebook(stream.tests), Scorebook(stream.tests)
    book.update(method)
    again.update(loaded)
    assert evaluate(book, method.decisions()) == evaluate(again, loaded.decisions())
    assert next(iter(method.decisions())) == name


def test_statistics_of_learned_tasks_never_change(stream: Stream) -> None:
    method = learned(stream, n_tasks=1)
    before = {name: value.clone() for name, value in method.prediction.statistics[0].named_buffers()}
    assert set(before) == {"means", "covariance", "usual"}
    for task in stream[1:]:
        method.learn(task)
    after = dict(method.prediction.statistics[0].named_buffers())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_statistics_are_those_of_the_tasks_features(fused: Clom, stream: Stream) -> None:
    own = fused.prediction.all_statistics()[1]
    task = stream[1]
    features = fused.outputs(task.train.pixels, 1, True).need_features()
    assert own.means.shape == (4, 2, features.shape[2])
    for label in range(2):
        expected = features[task.train.labels == label].mean(0)
        torch.testing.assert_close(own.means[:, label].double(), expected, rtol=1e-5, atol=1e-6)


def test_features_come_with_the_same_block(fused: Clom, stream: Stream) -> None:
    pixels = stream.tests[0].pixels
    assert torch.equal(fused.outputs(pixels, 1, True).block, fused.block(pixels, 1))
    # Rotation 0 is the image itself, without the features that the mask closes.
    unrotated = fused.outputs(pixels, 1, True).need_features()[:, 0]
    masked, group = fused.features(pixels, 1), fused.protection.net.feature_group
    assert group is not None
    torch.testing.assert_close(unrotated.float(), masked[:, fused.gates(1)[group] > 0], rtol=1e-4, atol=1e-5)


def test_forgetting_a_task_refits_the_predictor(stream: Stream) -> None:
    method = learned(stream)
    kept = [method.prediction.all_statistics()[task] for task in (0, 2)]
    method.forget(1)
    assert all(
        torch.equal(one.means, other.means) for one, other in zip(kept, method.prediction.all_statistics(), strict=True)
    )
    outputs = [method.outputs(stream.tests[0].pixels, task, True) for task in range(2)]
    assert decided(method.decisions()["fusion"], outputs)[0].shape == (16, 2)


def test_relation_of_til_task_detection_and_cil(fused: Clom, stream: Stream) -> None:
    for name in FITTED:
        fused.use_predictor(name)
        book = Scorebook(stream.tests)
        book.update(fused)
        found = evaluate(book, fused.decisions())
        assert found.til + found.preferred.task_detection - 1 <= found.preferred.cil + 1e-12
        assert found.preferred.cil <= min(found.til, found.preferred.task_detection) + 1e-12
    fused.use_predictor("fusion")


def test_models_without_statistics_say_so(stream: Stream, tmp_path: Path) -> None:
    method = Clom(TINY, quick(statistics=False), stream.image_shape, seed=0)
    method.learn(stream[0])
    assert method.prediction.n_bytes == 0
    with pytest.raises(UserError, match="no statistics"):
        method.use_predictor("mahalanobis")
    method.use_predictor("other-head")  # needs samples only


def test_predictors_that_cannot_work_are_refused(stream: Stream) -> None:
    with pytest.raises(UserError, match=r"'fusin'.*'fusion'"):
        Clom(TINY, quick(predictor="fusin"), stream.image_shape, seed=0)
    with pytest.raises(UserError, match="OOD score"):
        Clom(TINY, quick(predictor="product"), stream.image_shape, seed=0)
    with pytest.raises(UserError, match="needs stored samples"):
        Clom(TINY, quick(predictor="fusion", calibration="none"), stream.image_shape, seed=0)
    with pytest.raises(UserError, match="needs stored samples"):
        Clom(TINY, quick(predictor="tpl", memory_per_class=0), stream.image_shape, seed=0)


def test_every_masked_system_takes_a_predictor() -> None:
    for name in ("hat", "supsup", "clom-no-ood", "clom-odin", "supsup-ood"):
        config = resolve("digits-5t", name, "smoke", overrides={"predictor": "fusion"})
        assert config.settings["predictor"] == "fusion"


def test_a_plug_in_predictor_is_taken(stream: Stream) -> None:
    class Zero(TaskPredictor):
        def __call__(self, outputs):  # type: ignore[no-untyped-def]
            return torch.zeros(len(outputs[0]), len(outputs))

    PREDICTORS.register("zero")(Zero)
    method = learned(stream, "zero", n_tasks=2)
    outputs = [method.outputs(stream.tests[1].pixels, task, False) for task in range(2)]
    assert decided(method.decisions()["zero"], outputs)[0].amax(1).abs().max() == 0


# --- what users see --------------------------------------------------------------------------------------------------


def test_predictions_follow_the_predictor(fused: Clom, stream: Stream) -> None:
    """A predictor that always takes the last task decides every prediction."""

    class Last(TaskPredictor):
        def __call__(self, outputs):  # type: ignore[no-untyped-def]
            return torch.arange(len(outputs)).double().expand(len(outputs[0]), -1) * 1e3

    PREDICTORS.register("last")(Last)
    pixels = stream.tests[0].pixels
    usual = {answer.best.task for answer in Predictor(fused)(pixels)}
    fused.use_predictor("last")
    try:
        assert fused.uses_predictor
        assert {answer.best.task for answer in Predictor(fused)(pixels)} == {stream[2].name} != usual
        given = Predictor(fused)(pixels, task=stream[0].name)
        assert {answer.best.task for answer in given} == {stream[0].name}
        with pytest.raises(UserError, match="'last' cannot be exported"):
            make_graph(fused, [0, 1])
        make_graph(fused, [1])
    finally:
        fused.use_predictor("fusion")


def test_an_answer_takes_one_pass_through_each_network(
    fused: Clom, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = stream.tests[0].pixels[:8]
    expected = fused.comparable_blocks(pixels), fused.belonging(pixels)
    passes, compute = [], TaskNetwork.outputs

    def counted(network: TaskNetwork, views: Tensor) -> tuple[Tensor, Tensor]:
        passes.append(len(views))
        return compute(network, views)

    monkeypatch.setattr(TaskNetwork, "outputs", counted)
    compared, belonging = fused.comparable_and_belonging(pixels)
    assert passes == [4 * 8] * 3  # every rotation, for every task
    assert all(torch.equal(a, b) for a, b in zip(compared, expected[0], strict=True))
    assert torch.equal(belonging, expected[1])


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("name", ["clom", "clom-odin"])
def test_the_outputs_of_all_tasks_are_those_of_each(name: str, with_features: bool, stream: Stream) -> None:
    maker = method_class(name)
    method = maker(TINY, maker.settings_type(), stream.image_shape, 0)
    for task in stream[:2]:
        method.open_task(LearnedTask(task.name, task.class_names))
    pixels = stream.tests[0].pixels[:5]
    for number, found in enumerate(method.all_outputs(pixels, with_features)):
        alone = method.outputs(pixels, number, with_features)
        assert torch.equal(found.block, alone.block)
        assert torch.equal(found.block, method.block(pixels, number))
        assert (found.features is not None) == with_features
        if found.features is not None:
            assert torch.equal(found.features, alone.need_features())
