"""MUC: reference values, the parameters that each stage trains, and auxiliary images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data import catalog
from clom.data.images import DataSet, Images, to_unit
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.distillation import soft_cross_entropy
from clom.learning.loop import Plan
from clom.learning.progress import Progress
from clom.methods.families.base import LearnedTask
from clom.methods.muc import (
    Muc,
    MucSettings,
    SideTraining,
    auxiliary_images,
    discrepancy,
    shuffled_patches,
    side_distillation,
    side_loss,
    stage_one_loss,
)
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
LEARNING = ALEXNET.model_copy(update={"channels": (32, 32, 64), "hidden": 128})
RESNET = ResNet18Settings(width=8)
SHORT = Plan(epochs=2, batch=16)


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: object) -> Muc:
    given = {"plan": SHORT, "side_training": SideTraining(plan=SHORT), **settings}
    return Muc(net, MucSettings.model_validate(given), (1, 8, 8), seed)


@pytest.mark.parametrize("net", [ALEXNET, RESNET])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed), tiny_stream)


@pytest.mark.parametrize("outputs", ["side", "both"])
def test_is_a_method_with_side_outputs(outputs: str, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed=seed, predict_with=outputs, ood="noise"), tiny_stream)


# --- reference values


def test_discrepancy_and_side_loss() -> None:
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
    torch.testing.assert_close(outputs.softmax(2)[0, 0], torch.tensor([0.880797, 0.119203]))
    assert discrepancy(outputs).item() == pytest.approx(1.523188, abs=1e-6)
    pairs = [discrepancy(outputs[:, [one, other]]).item() for one, other in ((0, 1), (0, 2), (1, 2))]
    assert pairs == pytest.approx([0.761594, 0.380797, 0.380797], abs=1e-6)
    label = torch.tensor([0])
    without = side_loss(outputs, label, torch.zeros(1, 3, 2))
    assert without.item() == pytest.approx(2.947003, abs=1e-6)
    assert side_loss(outputs, label, outputs).item() == pytest.approx(1.423815, abs=1e-6)


@pytest.mark.parametrize(("n_classes", "bound"), [(2, 3.0), (10, 0.6), (40, 0.15)])
def test_the_discrepancy_is_bounded(n_classes: int, bound: float) -> None:
    outputs = 100 * torch.randn(50, 3, n_classes, generator=torch.Generator().manual_seed(0))
    # Three classifiers, each certain of a different class, which needs at least three classes.
    certain = 100 * torch.eye(n_classes)[:3].unsqueeze(0) if n_classes > 2 else outputs
    assert discrepancy(outputs) <= bound + 1e-6
    if n_classes > 2:
        assert discrepancy(certain).item() == pytest.approx(bound)
    assert discrepancy(torch.randn(5, 1, n_classes)).item() == 0


def test_distillation() -> None:
    student, teacher = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, 1.0]])
    apart, equal = soft_cross_entropy(student, teacher, 2.0), soft_cross_entropy(teacher, teacher, 2.0)
    assert apart.item() == pytest.approx(1.340348, abs=1e-6)
    assert equal.item() == pytest.approx(1.020191, abs=1e-6)
    assert (apart - equal).item() == pytest.approx(0.320157, abs=1e-6)
    moving = teacher.clone().requires_grad_()
    soft_cross_entropy(moving, teacher, 2.0).backward()  # type: ignore[no-untyped-call]
    assert moving.grad is not None
    assert moving.grad.abs().max() < 1e-7


def test_side_distillation_is_a_mean() -> None:
    student, teacher = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, 1.0]])
    both = side_distillation(torch.stack([student, teacher], 1), torch.stack([teacher, teacher], 1), 2.0)
    assert both.item() == pytest.approx((1.340348 + 1.020191) / 2, abs=1e-6)
    assert side_distillation(student[:, None], teacher[:, None], 2.0).item() == 0


def test_weighting() -> None:
    assert stage_one_loss(torch.tensor(0.7), torch.tensor(1.340348 + 0.5), 1).item() == pytest.approx(1.270174)
    assert stage_one_loss(torch.tensor(0.7), torch.tensor(9.0), 0).item() == pytest.approx(0.7)
    shares = [1 - stage_one_loss(torch.tensor(1.0), torch.tensor(0.0), learned).item() for learned in range(1, 5)]
    assert shares == pytest.approx([0.5, 2 / 3, 0.75, 0.8])


def test_training_sides_changes_nothing_else(tiny_stream: Stream) -> None:
    method = make(RESNET).learn(tiny_stream[0])
    second = tiny_stream[1]
    method.open_task(LearnedTask(second.name, second.class_names))
    before = {name: value.clone() for name, value in method.state_dict().items()}
    blocks = method.blocks(second.train.pixels)
    draws = torch.Generator().manual_seed(0)
    method._train_sides(second, auxiliary_images("noise", second, draws), draws, TrainingContext())
    changed = {name for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"side.parts.1.weight", "side.parts.1.bias"}
    assert all(torch.equal(old, new) for old, new in zip(blocks, method.blocks(second.train.pixels), strict=True))


def test_growing_does_not_change_old_outputs(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    before, sides = method.scores(pixels), method.sides(method.embed(pixels), 0)
    method.open_task(LearnedTask("three more", ("a", "b", "c")))
    assert torch.equal(method.scores(pixels)[:, :2], before)
    assert torch.equal(method.sides(method.embed(pixels), 0), sides)
    assert method.scores(pixels).shape[1] == 5
    assert method.sides(method.embed(pixels), 1).shape[1:] == (3, 3)


def test_parameters_trained_in_the_first_stage(tiny_stream: Stream) -> None:
    method = make()
    for task in tiny_stream[:2]:
        method.learn(task)
    third = tiny_stream[2]
    method.open_task(LearnedTask(third.name, third.class_names))
    method.zero_grad()
    loss_of = method._stage_one()
    with torch.no_grad():  # away from the teacher, where distillation has no gradient
        for parameter in method.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    images, labels = to_unit(third.train.pixels), method.new_data(third)[1]
    loss_of(images, labels).backward()  # type: ignore[no-untyped-call]
    assert [gets_gradient(part) for part in method.side.parts] == [False, True, False]
    assert [gets_gradient(part) for part in method.head.parts] == [True, True, True]


def gets_gradient(part: nn.Module) -> bool:
    return any(parameter.grad is not None and bool((parameter.grad != 0).any()) for parameter in part.parameters())


def test_loss_of_the_first_stage_by_hand(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    second = tiny_stream[1]
    method.open_task(LearnedTask(second.name, second.class_names))
    images, labels = to_unit(second.train.pixels), method.new_data(second)[1]
    loss = method._stage_one()(images, labels)
    features = method.backbone(images)
    outputs, sides = method.head(features), method.sides(features, 0)

    def entropy(logits: Tensor) -> Tensor:
        return -((logits / 2).softmax(1) * (logits / 2).log_softmax(1)).sum(1).mean()

    distillation = entropy(outputs[:, :2]) + torch.stack([entropy(sides[:, k]) for k in range(3)]).mean()
    torch.testing.assert_close(loss, 0.5 * F.cross_entropy(outputs[:, 2:], second.train.labels) + 0.5 * distillation)


def test_order_of_side_outputs() -> None:
    method = make()
    for task in range(2):
        method.open_task(LearnedTask(f"task {task}", (f"{task}a", f"{task}b")))
    features = torch.rand(4, 24)
    assert torch.equal(method.sides(features, 1)[:, 2, 0], method.side(features)[:, 10])


@pytest.mark.parametrize(
    ("net", "size", "n_classes", "expected"),
    [
        (ResNet18Settings(width=64), 32, 10, 11_189_352),
        (ResNet18Settings(width=128), 32, 100, 45_062_672),
        (ResNet18Settings(width=128), 32, 200, 45_472_672),
    ],
)
def test_published_parameter_counts(net: NetSettings, size: int, n_classes: int, expected: int) -> None:
    assert count(net, size, n_classes) == expected


def test_published_parameter_counts_for_mnist() -> None:
    assert f"{count(AlexNetSettings(), 28, 10) / 1e6:.2f}" == "1.06"


def count(net: NetSettings, size: int, n_classes: int) -> int:
    with torch.device("meta"):
        method = Muc(net, MucSettings(), (3, size, size))
        for task in range(5):
            names = tuple(f"{task}/{label}" for label in range(n_classes // 5))
            method.open_task(LearnedTask(f"task {task}", names))
    return method.n_parameters()


# --- auxiliary images


@pytest.mark.parametrize("size", [8, 28, 7, 3, 1])
def test_shuffled_patches_are_a_permutation_of_pixels(size: int) -> None:
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    shuffled = shuffled_patches(images, torch.Generator().manual_seed(1))
    assert shuffled.shape == images.shape
    colours = [sorted(map(tuple, picture.flatten(1).T.tolist())) for picture in images]
    assert [sorted(map(tuple, picture.flatten(1).T.tolist())) for picture in shuffled] == colours
    if size > 1:
        assert not torch.equal(shuffled, images)
        assert not torch.equal(shuffled[0].argsort(), shuffled[1].argsort())


def test_patches_stay_whole() -> None:
    image = torch.arange(16.0).repeat_interleave(4).view(1, 1, 4, 4, 2, 2).transpose(3, 4).reshape(1, 1, 8, 8)
    shuffled = shuffled_patches(image.expand(1, 3, 8, 8), torch.Generator().manual_seed(0))
    patches = F.unfold(shuffled[:, :1], 2, stride=2)[0].T
    assert bool((patches == patches[:, :1]).all())
    assert sorted(patches[:, 0].tolist()) == list(range(16))


def test_noise_covers_all_values(tiny_stream: Stream) -> None:
    noise = auxiliary_images("noise", tiny_stream[0], torch.Generator().manual_seed(0))(tiny_stream[0].train.pixels)
    assert noise.shape == (24, 3, 8, 8)
    assert noise.min() < 0.01
    assert noise.max() > 0.99


def colourful(count: int, size: int) -> Images:
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0))
    return Images(pixels.to(torch.uint8), torch.zeros(count, dtype=torch.int64))


def test_a_named_data_set_is_loaded_and_resized(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(name: str, folder: Path | None = None, download: bool = True) -> DataSet:
        loaded.append(name)
        return DataSet(name, ("thing",), colourful(0, 32), colourful(6, 32))

    monkeypatch.setattr(catalog, "load", load)
    drawn = auxiliary_images("svhn", tiny_stream[0], torch.Generator().manual_seed(0))(tiny_stream[0].train.pixels)
    assert loaded == ["svhn"]
    assert drawn.shape == (24, 3, 8, 8)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    make(ood="svhn").learn(tiny_stream[0])


def test_a_data_set_is_looked_for_in_the_given_folder(tiny_stream: Stream, tmp_path: Path) -> None:
    """And before anything is trained, so that nobody waits for stage 1 to hear that it is missing."""
    steps: list[Progress] = []
    with pytest.raises(UserError, match=r"put t10k-images-idx3-ubyte.gz.* into .*FashionMNIST"):
        make(ood="fashion-mnist").learn(tiny_stream[0], TrainingContext(steps.append, data=tmp_path))
    assert steps == []
    (tmp_path / "SVHN").mkdir()
    pixels = colourful(6, 32).pixels.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "SVHN" / "test_2000.npz", images=pixels, labels=np.arange(6))
    make(ood="svhn").learn(tiny_stream[0], TrainingContext(steps.append, data=tmp_path))
    assert {step.phase for step in steps} == {"learning", "sides"}


def test_an_unknown_data_set_is_refused(tiny_stream: Stream) -> None:
    with pytest.raises(UserError, match=r"no data set 'svnh'. Did you mean 'svhn'"):
        make(ood="svnh").learn(tiny_stream[0])


def test_a_data_set_with_images_of_the_task_is_refused(tiny_stream: Stream) -> None:
    with pytest.raises(UserError, match="'digits', which contains images of task 'task 1'"):
        make(ood="digits").learn(tiny_stream[0])


def test_learns_digits_better_than_without_distillation(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    results = {}
    for temperature in (2.0, 1e6):  # the second makes all targets uniform: nothing is distilled
        method = make(LEARNING, plan=Plan(epochs=30, batch=16), temperature=temperature)
        for task in stream:
            method.learn(task)
        book = Scorebook(stream.tests)
        book.update(method)
        results[temperature] = evaluate(book, method.calibrations())
    assert results[2.0].til > 0.95
    assert results[2.0].preferred.cil > results[1e6].preferred.cil + 0.05
