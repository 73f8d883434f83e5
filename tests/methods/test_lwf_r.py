"""LwF.R: loss, head, exemplars, and the effects of replay and distillation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.methods.families.base import LearnedTask
from clom.methods.lwf_r import LwfR, LwfRSettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.plain import CosineHead
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: Any) -> LwfR:
    chosen = {"plan": {"epochs": 2, "batch": 16}, "memory": {"size": 12}, **settings}
    return LwfR(net, LwfRSettings.model_validate(chosen), (1, 8, 8), seed)


def cil(method: LwfR, stream: Stream) -> float:
    book = Scorebook(stream.tests[: len(method.tasks)])
    book.update(method)
    return evaluate(book, method.calibrations()).preferred.cil


def state(method: LwfR) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in method.state_dict().items()}


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed), tiny_stream)


def test_loss_by_hand() -> None:
    # Cross-entropy over all four classes, distillation over the three old ones only.
    outputs, old, labels = torch.tensor([[1.0, 2, 3, 9]]), torch.tensor([[3.0, 2, 1]]), torch.tensor([3])
    distillation = make()._loss(outputs, old, labels) - make()._loss(outputs, None, labels)
    assert float(distillation) == pytest.approx(0.3201567, abs=1e-6)
    assert float(make()._loss(outputs, None, labels)) == pytest.approx(0.0037192, abs=1e-6)
    assert float(make(beta=1.0)._loss(outputs, old, labels)) == pytest.approx(0.0037192 + 4 * 0.3201567, abs=1e-5)


def test_only_old_rows_are_frozen(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    for task in tiny_stream[1:]:
        before = state(method)
        method.learn(task)
        after = state(method)
        old = [name for name in before if name.startswith("head.parts")]
        assert len(old) == len(method.tasks) - 1
        assert all(torch.equal(before[name], after[name]) for name in old)
        trained = [name for name in before if name.startswith("backbone") or name == "head.sigma"]
        assert all(not torch.equal(before[name], after[name]) for name in trained)


def test_new_rows_are_imprinted_and_trained(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make().learn(tiny_stream[0])
    features, labels = method.embed(tiny_stream[1].train.pixels), tiny_stream[1].train.labels
    imprinted = list[torch.Tensor]()
    imprint = CosineHead.imprint

    def spy(head: CosineHead, *arguments: torch.Tensor) -> None:
        torch.testing.assert_close(arguments[0], features, msg="rows are imprinted with the network before the task")
        imprint(head, *arguments)
        imprinted.append(head.parts[-1].detach().clone())

    monkeypatch.setattr(CosineHead, "imprint", spy)
    method.learn(tiny_stream[1])
    assert isinstance(method.head, CosineHead)
    directions = torch.nn.functional.normalize(features)
    for label in (0, 1):
        mean = directions[labels == label].mean(0)
        assert torch.cosine_similarity(imprinted[0][label], mean, 0) > 0.99999
    assert len(imprinted) == 1
    assert not torch.equal(method.head.parts[1], imprinted[0])


def test_logits_depend_on_directions_only(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    features = method.embed(tiny_stream.tests[0].pixels)
    torch.testing.assert_close(method.head(7 * features), method.head(features), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("rounding", "expected"), [("ceil", [5, 3, 2]), ("floor", [5, 2, 1])])
def test_exemplars_follow_the_quota_and_stay_a_prefix(rounding: str, expected: list[int], tiny_stream: Stream) -> None:
    method = make(memory={"size": 10, "rounding": rounding})
    earlier: dict[int, torch.Tensor] = {}
    for count, task in zip(expected, tiny_stream, strict=True):
        method.learn(task)
        pixels, labels = method.exemplars()
        assert torch.bincount(labels).tolist() == [count] * method.n_seen
        assert rounding == "ceil" or len(labels) <= 10
        now = {label: pixels[labels == label] for label in range(method.n_seen)}
        assert all(torch.equal(now[label], before[:count]) for label, before in earlier.items())
        for label in range(task.n_classes):
            real = task.train.pixels[task.train.labels == label]
            assert all(bool((real == image).all((1, 2, 3)).any()) for image in now[method.n_old + label])
        earlier = now


def test_features_may_be_negative_without_the_final_relu(tiny_stream: Stream) -> None:
    pixels = tiny_stream.tests[0].pixels
    assert make().embed(pixels).min() < 0
    assert make(final_relu=True).embed(pixels).min() >= 0


def test_unequal_tasks_and_no_memory(digits: DataSet) -> None:
    stream = split(digits, [1, 3], train_per_class=16, test_per_class=4)
    method = make(memory={"size": 0})
    for task in stream:
        method.learn(task)
    assert [block.shape for block in method.blocks(stream.tests[0].pixels)] == [(4, 1), (4, 3)]
    assert method.memory_bytes == 0


@pytest.mark.parametrize(
    ("net", "size", "classes", "exact"),
    [
        (ResNet18Settings(width=64), 32, 10, 11_173_953),
        (ResNet18Settings(width=128), 32, 100, 44_755_073),
        (ResNet18Settings(width=128), 32, 200, 44_857_473),
    ],
)
def test_published_parameter_counts(net: NetSettings, size: int, classes: int, exact: int) -> None:
    with torch.device("meta"):
        method = LwfR(net, LwfRSettings(), (3, size, size))
        for half in range(2):
            method.open_task(LearnedTask(f"half {half}", tuple(f"{half}/{n}" for n in range(classes // 2))))
    assert method.n_parameters() == exact


def test_distillation_preserves_old_outputs(tiny_stream: Stream) -> None:
    first, second, *_ = tiny_stream
    drift = {}
    for beta in (0.0, 5.0):
        method = make(beta=beta, memory={"size": 0}, plan={"epochs": 15, "batch": 16}).learn(first)
        before = method.blocks(second.train.pixels)[0].softmax(1)
        drift[beta] = float((method.learn(second).blocks(second.train.pixels)[0].softmax(1) - before).abs().mean())
    assert drift[5.0] < 0.7 * drift[0.0], drift


def test_replay_reduces_forgetting(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=50, test_per_class=20)
    accuracy = {}
    for size in (60, 0):
        method = make(plan={"epochs": 12, "batch": 16}, memory={"size": size})
        for task in stream:
            method.learn(task)
        accuracy[size] = cil(method, stream)
    assert accuracy[60] > 0.8, accuracy
    assert accuracy[0] < 0.5, accuracy
