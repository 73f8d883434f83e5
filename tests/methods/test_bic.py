"""BiC: reference values and invariants of its two stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task, split
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.bic import Bic, BicSettings, shares, stage_one_loss
from clom.methods.families.base import LearnedTask
from clom.methods.families.replay import MemorySettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
QUICK = {"plan": {"epochs": 2, "batch": 16}, "correction": {"plan": {"epochs": 4}, "optimiser": {"lr": 0.05}}}


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: Any) -> Bic:
    return Bic(net, BicSettings.model_validate(QUICK | settings), (1, 8, 8), seed)


def with_two_tasks(method: Bic) -> Bic:
    method.open_task(LearnedTask("old", ("a", "b")))
    method.open_task(LearnedTask("new", ("c", "d")))
    return method


class Reader(nn.Module):
    """A backbone whose four features, from -10 to 10, are the pixels of a 2 x 2 image."""

    n_features = 4

    def forward(self, images: Tensor) -> Tensor:
        return images[:, 0].flatten(1) * 20 - 10


def with_outputs(outputs: Tensor, labels: Tensor, **correction: Any) -> Bic:
    """A method with two tasks of two classes whose logits on its validation images are `outputs`."""
    settings = BicSettings.model_validate({"correction": correction})
    method = with_two_tasks(Bic(ALEXNET, settings, (1, 8, 8)))
    method.backbone, method.head = Reader(), nn.Identity()  # type: ignore[assignment]
    for task in (0, 1):
        own = labels // 2 == task
        method.held_out.add(task, (outputs[own].view(-1, 1, 2, 2) + 10) / 20, labels[own] % 2)
    return method


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed), tiny_stream)


@pytest.mark.parametrize(
    "settings",
    [{"kd_weight": "repo"}, {"leak_validation": True}, {"selection": "random"}, {"memory": {"size": 0}}],
)
def test_every_variant_is_a_method(settings: dict[str, Any], tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed=seed, **settings), tiny_stream)


# --- reference values -------------------------------------------------------------------------------------------------


def test_both_weightings_of_the_loss() -> None:
    new, old, labels = torch.tensor([[1, 2, 0.5, 3]]), torch.tensor([[2.0, 0, -1]]), torch.tensor([3])
    assert float(F.cross_entropy(new, labels)) == pytest.approx(0.4607735, abs=1e-6)
    assert float(stage_one_loss(new, old, labels, 2.0, "paper")) == pytest.approx(0.9786583, abs=1e-6)
    assert float(stage_one_loss(new, old, labels, 2.0, "repo")) == pytest.approx(4.7203398, abs=1e-6)


def test_a_correction_may_change_cil_but_never_til_predictions() -> None:
    method = with_two_tasks(make())
    method.corrections[1].copy_(torch.tensor([0.5, -0.2]))
    outputs = torch.tensor([[2, 1, 3, 2.5]])
    corrected = method.corrected(outputs)
    torch.testing.assert_close(corrected, torch.tensor([[2, 1, 1.3, 1.05]]))
    assert (int(outputs.argmax()), int(corrected.argmax())) == (2, 0)
    for task in (outputs[0, :2], corrected[0, :2]), (outputs[0, 2:], corrected[0, 2:]):
        assert int(task[0].argmax()) == int(task[1].argmax())


def test_gradient_of_stage_two() -> None:
    outputs, labels = torch.tensor([[2, 1, 3, 2.5], [0, 0, 1, 4]]), torch.tensor([0, 3])
    lr = 1e-3
    method = with_outputs(outputs, labels, plan={"epochs": 1}, optimiser={"kind": "sgd", "lr": lr})
    reports: list[Progress] = []
    method.correct_bias(TrainingContext(reports.append))
    assert reports[0].loss == pytest.approx(0.9147269, abs=1e-5)
    scale, shift = ((torch.tensor([1.0, 0.0]) - method.corrections[1]) / lr).tolist()  # one SGD step
    assert scale == pytest.approx(0.9341735, abs=1e-3)
    assert shift == pytest.approx(0.3638816, abs=1e-3)
    assert method.corrections[0].tolist() == [1, 0]


def test_the_penalty_reduces_the_shift() -> None:
    outputs, labels = torch.tensor([[2, 1, 3, 2.5], [0, 0, 1, 4]]), torch.tensor([0, 3])
    fitted = {}
    for penalty in (0.0, 0.5):
        method = with_outputs(
            outputs, labels, plan={"epochs": 40}, optimiser={"kind": "sgd", "lr": 0.1}, shift_penalty=penalty
        )
        method.correct_bias(TrainingContext())
        fitted[penalty] = abs(float(method.corrections[1][1]))
    assert 0 < fitted[0.5] < 0.8 * fitted[0.0]


def test_the_softmax_of_distillation_is_over_classes() -> None:
    new, old = torch.tensor([[1.0, 2], [3, 0]]), torch.tensor([[0.0, 1], [2, 2]])
    # Without new classes lambda is 1 and the loss is L_d; a softmax over the batch would give .8236293.
    loss = stage_one_loss(new, old, torch.tensor([0, 1]), 2.0, "paper")
    assert float(loss) == pytest.approx(0.8071303, abs=1e-6)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2000, {20: (90, 10), 40: (45, 5), 60: (30, 3), 80: (22, 2), 100: (18, 2), 120: (15, 1), 200: (9, 1)}),
        (200, {2: (90, 10), 4: (45, 5), 6: (30, 3), 8: (22, 2), 10: (18, 2)}),
    ],
)
def test_shares(size: int, expected: dict[int, tuple[int, int]]) -> None:
    memory = MemorySettings(size=size)
    assert {n: shares(memory, n) for n in expected} == expected
    assert shares(MemorySettings(size=20, mode="per_class"), 1000) == (18, 2)


@given(st.integers(0, 3000), st.integers(1, 300))
def test_the_memory_never_overflows(size: int, n_classes: int) -> None:
    training, validating = shares(MemorySettings(size=size), n_classes)
    assert (training + validating) * n_classes <= size
    assert training >= 0
    assert validating >= (1 if size >= n_classes else 0), "a class without validation images cannot be corrected"


def test_stage_two_corrects_a_known_bias() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (400,))
    unbiased = torch.randn(400, 4) * 0.8 + 2 * F.one_hot(labels, 4)
    biased = torch.cat([unbiased[:, :2], 2 * unbiased[:, 2:] + 1], 1)
    method = with_outputs(biased, labels, plan={"epochs": 250, "batch": 400}, optimiser={"lr": 0.1})

    def accuracy(outputs: Tensor) -> float:
        return float((outputs.argmax(1) == labels).float().mean())

    assert accuracy(unbiased) == pytest.approx(0.865)
    assert accuracy(biased) == pytest.approx(0.705)
    assert accuracy(method.corrected(biased)) == pytest.approx(0.705)
    method.correct_bias(TrainingContext())
    assert accuracy(method.corrected(biased)) == pytest.approx(0.845)


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_stage_two_changes_two_parameters_only(net: NetSettings, tiny_stream: Stream) -> None:
    method = make(net).learn(tiny_stream[0]).learn(tiny_stream[1])
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.correct_bias(TrainingContext())
    changed = [name for name, value in method.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["corrections.1"]


# --- invariants -------------------------------------------------------------------------------------------------------


def test_only_the_newest_task_is_corrected(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    assert method.corrections[0].tolist() == [1, 0]
    method.learn(tiny_stream[1])
    second = method.corrections[1].clone()
    assert second.tolist() != [1, 0]
    method.learn(tiny_stream[2])
    assert method.corrections[0].tolist() == [1, 0]
    assert torch.equal(method.corrections[1], second)
    assert method.corrections[2].tolist() != [1, 0]
    assert sum(p.numel() for p in method.corrections) == 2 * 3
    affine = method.calibrations()["bias correction"]
    assert affine.scales.tolist() == [float(correction[0]) for correction in method.corrections]


def test_a_scale_stays_positive() -> None:
    # The new classes' logits are inverted, so the optimal scale would be negative.
    labels = torch.tensor([0, 1, 2, 3])
    outputs = torch.tensor([[0, 0, 4.0, -4], [0, 0, -4, 4], [0, 0, -4, 4], [0, 0, 4, -4]])
    method = with_outputs(outputs, labels, plan={"epochs": 60}, optimiser={"lr": 0.1})
    method.correct_bias(TrainingContext())
    assert 0 < float(method.corrections[1][0]) < 0.05


class TrainedOn(Bic):
    """Records the training images of stage 1."""

    def train_on(self, pixels: Tensor, labels: Tensor, *args: Any, **options: Any) -> None:
        self.seen = {image.numpy().tobytes() for image in pixels}
        super().train_on(pixels, labels, *args, **options)


@pytest.mark.parametrize("leak", [False, True])
def test_validation_images_are_not_trained_on(leak: bool, digits: DataSet) -> None:
    stream = split(digits, [2, 2], train_per_class=40, validation=0.1, test_per_class=4)
    settings = BicSettings.model_validate(QUICK | {"memory": {"size": 100}, "leak_validation": leak})
    method = TrainedOn(ALEXNET, settings, (1, 8, 8))
    for number, task in enumerate(stream):
        method.learn(task)
        for exemplars, expected in ((method.memory, True), (method.held_out, leak)):
            newest = exemplars.pixels[exemplars.tasks == number]
            assert {image.numpy().tobytes() in method.seen for image in newest} == {expected}


def test_old_validation_images_stay_out_of_training(tiny_stream: Stream) -> None:
    method = TrainedOn(ALEXNET, BicSettings.model_validate(QUICK), (1, 8, 8))
    method.learn(tiny_stream[0])
    held_out, stored = method.held_out.pixels.clone(), method.memory.pixels.clone()
    method.learn(tiny_stream[1])
    assert not {image.numpy().tobytes() for image in held_out} & method.seen
    assert {image.numpy().tobytes() for image in stored} <= method.seen


def test_memory_is_split_and_balanced(digits: DataSet) -> None:
    stream = split(digits, [2, 3, 1], train_per_class=120, test_per_class=4)
    method = make(memory={"size": 100}, plan={"epochs": 1, "batch": 64})
    for task, expected in zip(stream, [(45, 5), (18, 2), (15, 1)], strict=True):
        method.learn(task)
        for memory, count in zip((method.memory, method.held_out), expected, strict=True):
            numbers = memory.labels + method.offsets()[memory.tasks]
            assert torch.bincount(numbers).tolist() == [count] * method.n_seen
        assert method.memory_bytes == sum(expected) * method.n_seen * 64 <= 100 * 64


def test_a_small_class_shrinks_all_validation_sets(digits: DataSet) -> None:
    """Stage 2 needs balanced classes: otherwise beta would learn their frequencies."""
    stream = split(digits, [2, 2], train_per_class=60, test_per_class=4)
    task = stream[1]
    rows = torch.cat([(task.train.labels == 0).nonzero()[:2, 0], (task.train.labels == 1).nonzero()[:, 0]])
    method = make().learn(stream[0])
    assert len(method.held_out) == 2 * 5
    method.learn(Task("uneven", task.class_names, task.train[rows], task.validation))
    assert torch.bincount(method.held_out.labels + method.offsets()[method.held_out.tasks]).tolist() == [1, 1, 1, 1]


def test_a_single_image_is_refused(tiny_stream: Stream) -> None:
    train = Images(tiny_stream[0].train.pixels[:2], torch.tensor([0, 1]))
    with pytest.raises(UserError, match="two images per class"):
        make().learn(Task("single", ("a", "b"), train, train))


def test_student_and_teacher_are_corrected_in_stage_one(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the third task, by hand, with a correction of the second."""
    method = make().learn(tiny_stream[0]).learn(tiny_stream[1])
    method.corrections[1].copy_(torch.tensor([0.5, 2.0]))
    images, labels = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 4, 5, 1])
    before = method.logits(images).detach()
    values = []

    def corrected(outputs: Tensor) -> Tensor:
        return torch.cat([outputs[:, :2], 0.5 * outputs[:, 2:4] + 2.0, outputs[:, 4:]], 1)

    def instead(pixels: Tensor, targets: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor], *rest: object) -> None:
        with torch.no_grad():
            for parameter in method.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(1.3)  # the student is no longer the teacher
            new = corrected(method.logits(images))
            targets = (corrected(before) / 2).softmax(1)
            distillation = -(targets * (new[:, :4] / 2).log_softmax(1)).sum(1).mean()
            by_hand = 4 / 6 * distillation + 2 / 6 * F.cross_entropy(new, labels)
            values.extend([float(loss_of(images, labels)), float(by_hand)])

    monkeypatch.setattr(method, "train_on", instead)
    method.learn(tiny_stream[2])
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_learns_digits(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    method = make(plan={"epochs": 20, "batch": 16}, memory={"size": 60}, correction={"optimiser": {"lr": 0.02}})
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    assert evaluation.til > 0.9
    assert evaluation.preferred.cil > 0.75
