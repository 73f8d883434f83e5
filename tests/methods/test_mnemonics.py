"""Mnemonics: reference values, and exemplars that are optimised and stay images.

Distillation, herding, imprinting and quotas are tested with their modules.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.images import DataSet
from clom.data.stream import Stream, Task, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.nearest_mean import neg_squared_distance
from clom.methods.icarl import Icarl, IcarlSettings
from clom.methods.mnemonics import KernelFactors, Mnemonics, MnemonicsSettings, prototype_loss, updated_rows
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
SHARED: dict[str, Any] = {"plan": {"epochs": 2, "batch": 16}, "memory": {"size": 12}}


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: Any) -> Mnemonics:
    exemplars = {"plan": {"epochs": 2, "batch": 16}, "inner_steps": 4, **settings.pop("exemplars", {})}
    return Mnemonics(
        net, MnemonicsSettings.model_validate({**SHARED, "exemplars": exemplars, **settings}), (1, 8, 8), seed
    )


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        pytest.param(ALEXNET, {}, id="prototype"),
        pytest.param(ResNet18Settings(width=8), {}, id="prototype-resnet"),
        pytest.param(ALEXNET, {"exemplars": {"version": "bilevel"}}, id="bilevel"),
        pytest.param(
            ResNet18Settings(width=8),
            {"exemplars": {"version": "bilevel"}, "weight_transfer": True, "adjust_old": {"epochs": 1}},
            id="everything-resnet",
        ),
    ],
)
def test_is_a_method(net: NetSettings, settings: dict[str, Any], tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed, **settings), tiny_stream)


def test_normalising_queries_does_not_change_predictions() -> None:
    features = torch.tensor([[3.0, 4], [0.2, -0.1]])
    means = F.normalize(torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
    assert neg_squared_distance(features, means).argmax(1).tolist() == [2, 0]
    assert (-torch.cdist(features, means)).argmax(1).tolist() == [2, 0]


def test_prototype_step_by_hand() -> None:
    exemplars = torch.tensor([[1, 0.2], [0.1, 1]], requires_grad=True)
    old_means = torch.tensor([[-1.0, -1]], requires_grad=True)
    queries, targets = torch.tensor([[1, 0.5], [0.4, 1], [-1, -0.8]]), torch.tensor([1, 2, 0])
    labels = torch.tensor([0, 1])
    loss = prototype_loss(exemplars, labels, old_means.detach(), queries, targets)
    assert float(loss.detach()) == pytest.approx(0.4904608, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, exemplars)
    expected = torch.tensor([[-0.0087229, 0.0436145], [0.0274009, -0.0027401]])
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=0)
    assert (gradient * exemplars).sum(1).abs().max() < 1e-8
    after = prototype_loss(exemplars - gradient, labels, old_means, queries, targets)
    assert float(after.detach()) == pytest.approx(0.4879292, abs=1e-6)


def test_prototypes_are_means_of_unnormalised_features() -> None:
    # (4, 0) weighs four times as much as (0, 1), so the mean is closer to the first axis.
    features, labels = torch.tensor([[4.0, 0], [0, 1], [-1, 0]]), torch.tensor([0, 0, 1])
    queries = torch.tensor([[1.0, 0]])
    cosines = torch.tensor([[4 / 17**0.5, -1.0]])
    expected = F.cross_entropy(cosines, torch.tensor([0]))
    none = torch.empty(0, 2)
    torch.testing.assert_close(prototype_loss(features, labels, none, queries, torch.tensor([0])), expected)


def test_bilevel_step_by_hand() -> None:
    exemplars = torch.eye(2, requires_grad=True)
    rows = updated_rows(torch.zeros(2, 2, requires_grad=True), [(exemplars, torch.tensor([0, 1]))], 0.1, F.linear)
    torch.testing.assert_close(rows.detach(), torch.tensor([[0.025, -0.025], [-0.025, 0.025]]))
    loss = F.cross_entropy(F.linear(torch.tensor([[1.0, 1], [0, 2]]), rows), torch.tensor([0, 1]))
    assert float(loss.detach()) == pytest.approx(0.6687719, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, exemplars)
    expected = torch.tensor([[-0.0125, 0.01125104], [0.0125, -0.01125104]])
    torch.testing.assert_close(gradient, expected, atol=1e-7, rtol=0)


def test_rows_are_updated_batch_by_batch() -> None:
    start, rate = torch.zeros(2, 2, requires_grad=True), 0.5
    batches = [(torch.tensor([[1.0, 0]]), torch.tensor([0])), (torch.tensor([[1.0, 1]]), torch.tensor([1]))]
    once = updated_rows(start, batches[:1], rate, F.linear)
    torch.testing.assert_close(
        updated_rows(start, batches, rate, F.linear), updated_rows(once, batches[1:], rate, F.linear)
    )
    assert torch.equal(updated_rows(start, [], rate, F.linear), start)


def exemplar_pixels(method: Icarl) -> Tensor:
    return method.exemplars()[0].to(torch.float32) / (1 if method.memory.pixels.is_floating_point() else 255)


@pytest.mark.parametrize("version", ["prototype", "bilevel"])
def test_exemplars_are_optimised_and_not_rounded(version: str, tiny_stream: Stream) -> None:
    method = make(exemplars={"version": version}).learn(tiny_stream[0])
    icarl = Icarl(ALEXNET, IcarlSettings.model_validate(SHARED), (1, 8, 8)).learn(tiny_stream[0])
    for (name, ours), expected in zip(method.backbone.named_parameters(), icarl.backbone.parameters(), strict=True):
        assert torch.equal(ours, expected), f"the exemplar step changed {name}"
    pixels, labels = method.exemplars()
    assert torch.equal(labels, icarl.exemplars()[1])
    assert pixels.dtype == torch.float32
    assert method.memory_bytes == 4 * icarl.memory_bytes == 4 * 12 * 64
    assert 0 <= pixels.min() <= pixels.max() <= 1
    moved = (pixels - exemplar_pixels(icarl)).abs() * 255  # in grey levels
    assert 0.5 < moved.max() < 20
    assert (pixels * 255 - (pixels * 255).round()).abs().max() > 0.1


@pytest.mark.parametrize("version", ["prototype", "bilevel"])
def test_with_a_zero_learning_rate_exemplars_are_the_herded_images(version: str, tiny_stream: Stream) -> None:
    unchanged = {"version": version, "optimiser": {"kind": "sgd", "lr": 1e-12}}
    method = make(exemplars=unchanged)
    icarl = Icarl(ALEXNET, IcarlSettings.model_validate(SHARED), (1, 8, 8))
    for task in tiny_stream[:1]:
        method.learn(task)
        icarl.learn(task)
    torch.testing.assert_close(exemplar_pixels(method), exemplar_pixels(icarl), atol=1e-6, rtol=0)


@pytest.mark.parametrize("version", ["prototype", "bilevel"])
def test_many_exemplars_are_processed_in_batches(
    version: str, tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = make(exemplars={"version": version}).learn(tiny_stream[0])
    monkeypatch.setattr("clom.methods.mnemonics.BATCH", 5)
    in_batches = make(exemplars={"version": version}).learn(tiny_stream[0])
    torch.testing.assert_close(in_batches.memory.pixels, at_once.memory.pixels, atol=1e-4, rtol=0)


def loss_of_exemplars(method: Mnemonics, task: Task, version: str) -> tuple[float, float]:
    """The loss of the herded and of the learned exemplars on all real images of a first task."""
    herded = torch.cat(method.herded(task))
    labels, features = task.train.labels, method.embed(task.train.pixels)
    stored, stored_labels = method.exemplars()
    losses = []
    for pixels in (task.train.pixels[herded], stored):
        if version == "prototype":
            loss = prototype_loss(method.embed(pixels), stored_labels, method.means[:0], features, labels)
        else:
            bilevel_loss = method._bilevel(stored_labels)

            def features_of(rows: Tensor, pixels: Tensor = pixels) -> Tensor:
                return method.embed(pixels)[rows]

            loss = bilevel_loss(features_of, features, labels, 0)
        losses.append(float(loss.detach()))
    return losses[0], losses[1]


@pytest.mark.parametrize("version", ["prototype", "bilevel"])
def test_learned_exemplars_have_a_lower_loss_than_herded_ones(version: str, tiny_stream: Stream) -> None:
    plan = {"epochs": 20, "batch": 24, "schedule": {"kind": "constant"}}
    exemplars = {"version": version, "plan": plan, "inner_lr": 1.0}
    method = make(exemplars=exemplars, plan={"epochs": 10, "batch": 16}).learn(tiny_stream[0])
    before, after = loss_of_exemplars(method, tiny_stream[0], version)
    assert after < before


def test_old_exemplars_stay_unless_adjusted(tiny_stream: Stream) -> None:
    for adjust in (None, {"epochs": 1, "batch": 16}):
        method = make(adjust_old=adjust, exemplars={"version": "bilevel"}).learn(tiny_stream[0])
        pixels, labels = method.exemplars()
        before = torch.cat([pixels[labels == label][:3] for label in (0, 1)])
        method.learn(tiny_stream[1])
        now, now_labels = method.exemplars()
        assert torch.bincount(now_labels).tolist() == [3] * 4
        moved = (now[now_labels < 2] - before).abs().amax((1, 2, 3))
        assert bool((moved > 0).all()) if adjust else bool((moved == 0).all())
        assert 0 <= now.min() <= now.max() <= 1


def test_new_images_are_scaled_like_exemplars(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    pixels, labels = method.new_and_stored(tiny_stream[1])
    stored = method.exemplars()[0]
    assert torch.equal(pixels[-len(stored) :], stored)
    torch.testing.assert_close(pixels[: -len(stored)], tiny_stream[1].train.pixels / 255)
    assert labels[: -len(stored)].min() >= 0


def test_weight_transfer_learns_a_factor_per_kernel(tiny_stream: Stream) -> None:
    method = make(ResNet18Settings(width=4), weight_transfer=True).learn(tiny_stream[0])
    count = method.n_parameters()
    kernels = [p.detach().clone() for p in method.backbone.parameters() if p.ndim == 4]
    for task in tiny_stream[1:]:
        method.learn(task)
        factors = [module for module in method.modules() if isinstance(module, KernelFactors)]
        assert len(factors) == len(kernels) == 20
        originals = [value for name, value in method.named_parameters() if name.endswith("original")]
        assert all(torch.equal(now, before) for now, before in zip(originals, kernels, strict=True))
        assert all(module.factors.shape[2:] == (1, 1) for module in factors)
        assert all(bool((module.factors != 1).any()) for module in factors)
    assert method.n_parameters() == count + 4 * 32  # heads of two more tasks; factors are part of their kernels


def test_learns_digits(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=50, test_per_class=20)
    method = make(plan={"epochs": 12, "batch": 16}, memory={"size": 60}, exemplars={"plan": {"epochs": 2, "batch": 64}})
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    assert evaluation.til > 0.9
    assert evaluation.preferred.cil > 0.8
