"""PASS: reference values, gradients of each loss, prototypes, and accuracy without stored samples."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.images import DataSet, to_unit
from clom.data.stream import Stream, split
from clom.data.views import Augmentation
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning.distillation import teacher_of
from clom.learning.loop import Plan, generator
from clom.learning.optim import OptimiserSettings
from clom.methods.baselines import FineTune
from clom.methods.families.base import LearnedTask
from clom.methods.families.shared import LossOf, SharedSettings
from clom.methods.pass_ import (
    Pass,
    PassSettings,
    feature_distance,
    pseudo_features,
    radius_of,
    rotation_classes,
    scaled_cross_entropy,
    upright,
)
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
WIDER = AlexNetSettings(channels=(32, 32, 64), hidden=64, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
SHORT = PassSettings(plan=Plan(epochs=1, batch=16))


def make(settings: PassSettings = SHORT, seed: int = 0) -> Pass:
    return Pass(ALEXNET, settings, (1, 8, 8), seed)


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: Pass(net, SHORT, (1, 8, 8), seed), tiny_stream)


def test_rotation_classes() -> None:
    image = torch.tensor([[1.0, 2], [3, 4]])
    images = torch.stack([image, 10 * image])[:, None]
    rotated, classes = rotation_classes(images, torch.tensor([5, 7]))
    expected = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert rotated[:4, 0].tolist() == expected
    assert torch.equal(rotated[4:], 10 * rotated[:4])
    assert classes.tolist() == [20, 21, 22, 23, 28, 29, 30, 31]


def test_radius() -> None:
    # Variances 4/3 and 1, so sqrt(7/6).
    features = torch.tensor([[0.0, 0], [2, 0], [0, 2], [2, 2], [1, 1], [1, 3]])
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    assert radius_of(features, labels).item() == pytest.approx(1.0801234, abs=1e-6)


def test_classes_of_one_image_are_left_out_of_the_radius() -> None:
    features = torch.tensor([[1.0, 1], [1, 3], [7, 7]])
    assert radius_of(features, torch.tensor([0, 0, 1])).item() == pytest.approx(1.0)
    assert radius_of(features[1:], torch.tensor([0, 1])).item() == 0


def test_pseudo_features() -> None:
    prototypes = torch.arange(15.0).reshape(5, 3)
    plain, classes = pseudo_features(prototypes, torch.tensor(0.0), 100, generator(0))
    assert torch.equal(plain, prototypes[classes // 4])
    noisy, classes = pseudo_features(prototypes, torch.tensor(2.0), 10_000, generator(0))
    assert (noisy - prototypes[classes // 4]).std(0).tolist() == pytest.approx([2.0] * 3, rel=0.03)
    assert set(classes.tolist()) == {0, 4, 8, 12, 16}
    assert torch.bincount(classes)[::4].tolist() == pytest.approx([2000] * 5, rel=0.1)


def test_gradients_of_each_loss(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    method.open_task(LearnedTask("next", ("x", "y")))
    method.zero_grad()
    backbone, head = list(method.backbone.parameters()), list(method.head.parameters())
    method.prototype_loss(8, generator(0)).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in backbone)
    assert all(parameter.grad is not None for parameter in head)

    method.zero_grad()
    teacher = teacher_of(method.backbone)
    images = to_unit(tiny_stream[1].train.pixels)
    feature_distance(method.backbone(images), teacher(images) + 0.1).backward()  # type: ignore[no-untyped-call]
    assert any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in backbone)
    assert all(parameter.grad is None for parameter in head)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_distance_is_a_norm_of_the_whole_batch() -> None:
    # All differences 0.1 at 256 x 512; the gradient at zero distance is zero, not NaN.
    assert feature_distance(torch.full((256, 512), 0.1), torch.zeros(256, 512)).item() == pytest.approx(36.2, abs=0.01)
    same = torch.ones(4, 3, requires_grad=True)
    feature_distance(same, torch.ones(4, 3)).backward()  # type: ignore[no-untyped-call]
    assert same.grad is not None
    assert not same.grad.any()


def test_temperature() -> None:
    outputs, target = torch.tensor([[1.0, 0.8]]), torch.tensor([0])
    assert scaled_cross_entropy(outputs, target, 0.1).item() == pytest.approx(0.126928, abs=1e-6)
    assert scaled_cross_entropy(outputs, target, 1.0).item() == pytest.approx(0.598139, abs=1e-6)


def test_only_unrotated_outputs_predict() -> None:
    outputs = torch.tensor([[0.1, 9, 9, 9, 0.3, -1, -1, -1, 0.2, 0, 0, 0]])
    assert upright(outputs).argmax(1).item() == 1
    torch.testing.assert_close(upright(outputs), torch.tensor([[0.1, 0.3, 0.2]]))


def test_growing_leaves_old_outputs_unchanged(tiny_stream: Stream) -> None:
    # With tasks of unequal size.
    method = make()
    method.open_task(LearnedTask("first", ("a", "b", "c")))
    images = to_unit(tiny_stream.tests[0].pixels)
    before = method.logits(images)
    method.open_task(LearnedTask("second", ("d",)))
    assert method.logits(images).shape[1] == 16
    assert torch.equal(method.logits(images)[:, :12], before)
    assert [block.shape[1] for block in method.blocks(tiny_stream.tests[0].pixels)] == [3, 1]


def test_prototypes_are_fixed_means_and_no_image_is_stored(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    train = tiny_stream[0].train
    features = method.embed(train.pixels)
    means = torch.stack([features[train.labels == label].mean(0) for label in range(2)])
    torch.testing.assert_close(method.prototypes, means)
    radius = method.radius.item()
    assert radius == pytest.approx(radius_of(features, train.labels).item())
    assert radius > 0
    first = method.prototypes.clone()
    method.learn(tiny_stream[1])
    assert torch.equal(method.prototypes[:2], first)
    assert bool(method.prototypes[2:].any(1).all())
    assert method.radius.item() == radius
    assert method.memory_bytes == 0
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", method)
        loaded = load_model(Path(folder) / "model")
    assert isinstance(loaded, Pass)
    assert torch.equal(loaded.prototypes, method.prototypes)
    assert loaded.radius.item() == radius


def test_distillation_reduces_feature_drift(tiny_stream: Stream) -> None:
    drift = {}
    for weight in (0.0, 10.0):
        method = make(PassSettings(plan=Plan(epochs=5, batch=16), distillation=weight)).learn(tiny_stream[0])
        before = method.embed(tiny_stream[0].train.pixels)
        method.learn(tiny_stream[1])
        drift[weight] = torch.dist(method.embed(tiny_stream[0].train.pixels), before).item()
    assert drift[10.0] < 0.5 * drift[0.0]


@pytest.mark.parametrize(
    ("net", "size", "n_tasks", "n_classes", "millions"),
    [
        pytest.param(AlexNetSettings(), 28, 5, 2, "1.03", id="mnist-5t"),
        pytest.param(ResNet18Settings(width=64), 32, 5, 2, "11.17", id="cifar10-5t"),
        pytest.param(ResNet18Settings(width=128), 32, 10, 10, "44.76", id="cifar100-10t"),
        pytest.param(ResNet18Settings(width=128), 32, 5, 40, "44.86", id="tinyimagenet-5t"),
    ],
)
def test_the_papers_parameter_counts(net: NetSettings, size: int, n_tasks: int, n_classes: int, millions: str) -> None:
    with torch.device("meta"):
        method = Pass(net, PassSettings(), (3, size, size))
        for task in range(n_tasks):
            method.open_task(LearnedTask(f"task {task}", tuple(f"{task}/{label}" for label in range(n_classes))))
    assert f"{method.n_parameters() / 1e6:.2f}" == millions


def test_learns_digits_without_samples(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    # Such a short training needs less distillation: a hundredth of the published weight.
    settings = PassSettings(plan=Plan(epochs=8, batch=16), distillation=0.1)
    found = {}
    for method in (Pass(WIDER, settings, (1, 8, 8)), FineTune(WIDER, SharedSettings(plan=settings.plan), (1, 8, 8))):
        for task in stream:
            method.learn(task)
        book = Scorebook(stream.tests)
        book.update(method)
        found[method.name] = evaluate(book, method.calibrations())
    assert found["pass"].til > 0.85
    assert found["pass"].preferred.cil > found["finetune"].preferred.cil + 0.2


def test_published_settings_in_the_paper_budget() -> None:
    paper = PassSettings.model_validate(resolve("cifar100-10t", "pass", "paper").settings)
    assert (paper.temperature, paper.prototypes, paper.distillation) == (0.1, 10, 10)
    assert paper.optimiser == OptimiserSettings(kind="adam", lr=1e-3, weight_decay=2e-4)
    assert (paper.plan.epochs, paper.plan.batch) == (101, 64)
    # Learning rates: 1e-3 for epochs 0-43, 1e-4 for 44-88, 1e-5 for 89-100.
    rates = [paper.optimiser.lr * paper.plan.schedule.factor(epoch, 101) for epoch in (0, 43, 44, 88, 89, 100)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert paper.augmentation == Augmentation(colour=False, crop=False, shift=4)
    tiny = PassSettings.model_validate(resolve("tinyimagenet-5t", "pass", "paper").settings)
    assert tiny.augmentation == Augmentation(colour=False, crop=False)


def test_the_whole_loss(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """L_ce for the first task, then L_ce + 10 L_proto + 10 L_kd, written out in plain torch."""
    losses: list[LossOf] = []

    def capture(self: Pass, pixels: Tensor, labels: Tensor, loss_of: LossOf, *rest: object, **options: object) -> None:
        losses.append(loss_of)

    method = make().learn(tiny_stream[0])
    old = copy.deepcopy(method)
    monkeypatch.setattr(Pass, "train_on", capture)
    method.learn(tiny_stream[1])
    with torch.no_grad():  # stands in for training
        for parameter in method.backbone.parameters():
            parameter.mul_(1.1)

    images, labels = to_unit(tiny_stream[1].train.pixels[:6]), tiny_stream[1].train.labels[:6] + 2
    rotated = torch.cat([torch.rot90(image[None], turn, (2, 3)) for image in images for turn in range(4)])
    targets = torch.tensor([4 * label + turn for label in labels.tolist() for turn in range(4)])
    features = method.backbone(rotated)
    assert method.head(features).shape == (24, 16)
    cross_entropy = F.cross_entropy(method.head(features) / 0.1, targets)
    noise = generator(0, "prototypes", 1)
    drawn = torch.randint(2, (6,), generator=noise)
    pseudo = method.prototypes[drawn] + method.radius * torch.randn(6, 24, generator=noise)
    prototypes = F.cross_entropy(method.head(pseudo) / 0.1, 4 * drawn)
    distance = (features - old.backbone(rotated)).pow(2).sum().sqrt()
    torch.testing.assert_close(losses[-1](images, labels), cross_entropy + 10 * prototypes + 10 * distance)
    assert distance > 0.01

    fresh = make()
    fresh.learn(tiny_stream[0])
    value = losses[-1](images, labels - 2)
    torch.testing.assert_close(value, F.cross_entropy(fresh.head(fresh.backbone(rotated)) / 0.1, targets - 8))
