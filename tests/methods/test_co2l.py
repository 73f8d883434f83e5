"""Co2L: sampling, memory, use of its losses, accuracy. The losses are tested in learning/test_losses.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.data.views import Augmentation
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning import heads, losses
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import SgdHeadSettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.progress import Progress
from clom.methods import co2l
from clom.methods.co2l import Co2L, Co2LSettings, balanced, rounded
from clom.methods.families.base import LearnedTask
from clom.methods.families.replay import MemorySettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
CROPS = Augmentation(flip=False, colour=False, crop_area=(0.5, 1.0))


def settings(**values: object) -> Co2LSettings:
    small = {"plan": Plan(epochs=1, batch=16), "augmentation": CROPS, "head": HeadSettings(views=1, iterations=30)}
    return Co2LSettings.model_validate({**small, **values})


def make(seed: int = 0, **values: object) -> Co2L:
    return Co2L(ALEXNET, settings(**values), (1, 8, 8), seed)


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    chosen = settings(memory=MemorySettings(size=10))
    check_method(lambda seed: Co2L(net, chosen, (1, 8, 8), seed), tiny_stream)


@pytest.mark.parametrize("options", [{"head": SgdHeadSettings(plan=Plan(epochs=2))}, {"teacher_bn": "batch"}])
def test_the_original_variants_are_methods(options: dict[str, object], tiny_stream: Stream) -> None:
    chosen = settings(**options)
    check_method(lambda seed: Co2L(ResNet18Settings(width=8), chosen, (1, 8, 8), seed), tiny_stream)


def test_sampling_is_balanced() -> None:
    # 8 old classes of 25 images and 2 new ones of 5000.
    labels = torch.cat([torch.arange(8).repeat_interleave(25), torch.arange(8, 10).repeat_interleave(5000)])
    weights = balanced(labels)
    of_class = torch.stack([weights[labels == label].sum() for label in range(10)])
    torch.testing.assert_close(of_class, torch.full((10,), 0.1, dtype=torch.float64))
    assert len(labels) == 10_200
    assert (len(labels) * weights[0]).item() == pytest.approx(40.8)


def test_sizes_of_the_memory() -> None:
    # K = 200, 2 classes per task; draws are spread evenly over [0, 1).
    method, draws = make(memory=MemorySettings(size=200)), [(n + 0.5) / 600 for n in range(600)]
    for number, expected in enumerate([100, 50, 33 + 1 / 3, 25]):
        method.open_task(LearnedTask(f"task {number}", (f"{number}a", f"{number}b")))
        sizes = torch.tensor([method._sizes(draw) for draw in draws])
        assert sizes.shape[1] == 2 * (number + 1)
        assert bool((sizes.sum(1) == 200).all())
        assert sizes.double().mean(0).tolist() == pytest.approx([expected] * sizes.shape[1])


def test_memory_is_divided_by_task_and_evenly_among_old_classes() -> None:
    method = make(memory=MemorySettings(size=120))
    for number, names in enumerate([("a",), ("b", "c", "d"), ("e", "f")]):
        method.open_task(LearnedTask(f"task {number}", names))
    assert method._sizes(0.5) == [20, 20, 20, 20, 20, 20]
    method.open_task(LearnedTask("task 3", ("g",)))
    assert method._sizes(0.0) == [15, 15, 15, 15, 15, 15, 30]


def test_rounding_preserves_the_sum_and_expected_sizes() -> None:
    sizes = [0.25, 1.5, 2.0, 0.1, 3.15]
    drawn = torch.tensor([rounded(sizes, (n + 0.5) / 1000) for n in range(1000)])
    assert bool((drawn.sum(1) == 7).all())
    assert drawn.double().mean(0).tolist() == pytest.approx(sizes, abs=2e-3)
    assert bool(((drawn - torch.tensor(sizes)).abs() < 1).all())


def test_memory_stores_training_images_and_only_drops_old_ones(tiny_stream: Stream) -> None:
    method, before = make(memory=MemorySettings(size=12)), dict[int, set[bytes]]()
    for number, task in enumerate(tiny_stream):
        method.learn(task)
        assert len(method.memory) == 12
        assert method.memory_bytes == 12 * 64
        now = {}
        for label in range(method.n_seen):
            pixels, labels = method.exemplars()
            now[label] = {image.numpy().tobytes() for image in pixels[labels == label]}
            assert len(now[label]) == 12 // (2 * number + 2)
        trained = {image.numpy().tobytes() for image in task.train.pixels}
        assert all(now[method.n_old + label] <= trained for label in range(2))
        assert all(now[label] <= before[label] for label in before)
        before = now


def test_the_classifier_is_trained_with_the_memory_from_before_the_task(
    tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[list[int]] = []
    weighted: list[Tensor] = []

    def watched(features: Tensor, labels: Tensor, n_outputs: int, head: HeadSettings, weights: Tensor) -> nn.Linear:
        counts.append(torch.bincount(labels, minlength=n_outputs).tolist())
        weighted.append(weights * torch.bincount(labels, minlength=n_outputs))
        return heads.solve_head(features, labels, n_outputs, head, weights)

    monkeypatch.setattr(co2l, "solve_head", watched)
    method = make(memory=MemorySettings(size=12))
    for task in tiny_stream:
        method.learn(task)
    assert counts == [[12, 12], [6, 6, 12, 12], [3, 3, 3, 3, 12, 12]]
    for weights in weighted:  # classes have equal weight
        torch.testing.assert_close(weights, torch.ones(len(weights)))


def test_only_later_tasks_distil_and_old_samples_are_not_anchors(
    tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors: list[tuple[Tensor, Tensor]] = []
    distilled: list[int] = []

    def contrast(z: Tensor, labels: Tensor, current: Tensor, *temperatures: float) -> Tensor:
        anchors.append((labels, current))
        assert temperatures == (0.5, 0.07)
        torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
        return losses.asymmetric_contrastive(z, labels, current, *temperatures)

    def distil(z: Tensor, past: Tensor, *temperatures: float) -> Tensor:
        assert temperatures == (0.2, 0.01)
        assert not past.requires_grad
        if not distilled:  # before the first step the teacher is the network itself
            torch.testing.assert_close(z, past)
        distilled.append(len(z))
        return losses.relation_distillation(z, past, *temperatures)

    monkeypatch.setattr(co2l, "asymmetric_contrastive", contrast)
    monkeypatch.setattr(co2l, "relation_distillation", distil)
    method = make(memory=MemorySettings(size=12)).learn(tiny_stream[0])
    assert not distilled
    assert all(bool(current.all()) for _, current in anchors)
    anchors.clear()
    method.learn(tiny_stream[1])
    assert distilled == [len(labels) for labels, _ in anchors]
    assert sum(distilled) == 2 * (24 + 12)  # two views of the new images and of the whole memory, each once
    for labels, current in anchors:
        assert torch.equal(current, labels >= 2)
        first, second = labels.chunk(2)
        assert torch.equal(first, second)


def test_the_first_task_may_be_trained_longer(tiny_stream: Stream) -> None:
    reports: list[Progress] = []
    method = make(first_epochs=3)
    for task in tiny_stream[:2]:
        method.learn(task, TrainingContext(reports.append))
    assert {step.epochs for step in reports if step.task == 0} == {3}
    assert {step.epochs for step in reports if step.task == 1} == {1}


def test_learns_without_a_memory(tiny_stream: Stream) -> None:
    method = make(memory=MemorySettings(size=0))
    for task in tiny_stream:
        method.learn(task)
    assert method.memory_bytes == 0
    assert all(bool(torch.isfinite(block).all()) for block in method.blocks(tiny_stream.tests[0].pixels))


SGD_HEAD = SgdHeadSettings(plan=Plan(epochs=20, batch=16), optimiser=OptimiserSettings(kind="sgd", lr=0.3))


@pytest.mark.parametrize("head", [HeadSettings(views=2), SGD_HEAD])
def test_both_classifiers_are_balanced(head: HeadSettings | SgdHeadSettings, tiny_stream: Stream) -> None:
    """The same image 45 times as one class and 5 times as the other must get equal probabilities."""
    method = make(head=head).learn(tiny_stream[0])
    image, labels = tiny_stream[0].train.pixels[:1], torch.tensor([0] * 45 + [1] * 5)
    method._learn_head(image.expand(50, -1, -1, -1), labels, TrainingContext())
    assert method.scores(image).softmax(1)[0, 0].item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("head", [HeadSettings(views=1), SGD_HEAD])
def test_both_classifiers_fit_the_features(head: HeadSettings | SgdHeadSettings, tiny_stream: Stream) -> None:
    method = make(plan=Plan(epochs=10, batch=16), head=head).learn(tiny_stream[0])
    assert (method.scores(tiny_stream[0].train.pixels).argmax(1) == tiny_stream[0].train.labels).double().mean() > 0.9


def test_learns_digits(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    method = make(plan=Plan(epochs=12, batch=32), memory=MemorySettings(size=60), head=HeadSettings(views=4))
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    accuracy = evaluate(book, method.calibrations())
    assert accuracy.til > 0.93
    assert accuracy.preferred.cil > 0.7


def test_published_settings_in_the_paper_budget() -> None:
    paper = Co2LSettings.model_validate(resolve("cifar10-5t", "co2l", "paper").settings)
    assert (paper.first_epochs, paper.plan.epochs, paper.plan.batch) == (500, 100, 512)
    assert paper.optimiser == OptimiserSettings(kind="sgd", lr=0.5, momentum=0.9, weight_decay=1e-4)
    assert (paper.temperature, paper.similarity_temperature, paper.past_temperature) == (0.5, 0.2, 0.01)
    assert paper.augmentation == Augmentation(crop_area=(0.2, 1.0))
    assert paper.memory.size == 200
    assert isinstance(paper.head, SgdHeadSettings)
    assert paper.head.optimiser == OptimiserSettings(kind="sgd", lr=1.0, momentum=0.9)
    assert [paper.head.plan.schedule.factor(epoch, 100) for epoch in (59, 60, 90)] == pytest.approx([1, 0.2, 0.008])
    tiny = Co2LSettings.model_validate(resolve("tinyimagenet-5t", "co2l", "paper").settings)
    assert (tiny.optimiser.lr, tiny.similarity_temperature, tiny.past_temperature) == (0.1, 0.1, 0.1)
    assert (tiny.plan.epochs, tiny.augmentation.crop_area, tiny.memory.size) == (50, (0.1, 1.0), 2000)


def test_the_loss_of_a_later_task_by_hand(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """L_asym with the new classes as anchors, plus lambda L_ird against the network before the task."""
    method = make(distillation=0.3, temperature=0.4, similarity_temperature=0.3, past_temperature=0.1)
    method.learn(tiny_stream[0])
    images, labels = (
        torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 2, 3, 2, 3, 1]),
    )

    def projected() -> Tensor:
        return F.normalize(method.projection(method.backbone(images)))

    values: list[float] = []

    def instead(
        pixels: Tensor, targets: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor], *more: object, **options: object
    ) -> None:
        with torch.no_grad():
            past = projected()
            for parameter in (*method.backbone.parameters(), *method.projection.parameters()):
                parameter.add_(0.05)  # the network is no longer that from before the task
            new = projected()
            anchors = losses.asymmetric_contrastive(new, labels, labels >= 2, 0.4, method.settings.base_temperature)
            by_hand = anchors + 0.3 * losses.relation_distillation(new, past, 0.3, 0.1)
            values.extend([float(loss_of(images, labels)), float(by_hand)])

    monkeypatch.setattr(method, "train_on", instead)
    method.learn(tiny_stream[1])
    assert values[0] == pytest.approx(values[1], rel=1e-6)
