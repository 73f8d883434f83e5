"""Both steps of learning a task: views, plain contrastive learning as a special case, batch norm, heads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import Images
from clom.data.stream import Stream, Task
from clom.data.views import Augmentation, classifier_views, contrastive_views
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.base import Learner, recompute_norms, training_views, view_features
from clom.learning.learners.contrastive import ContrastiveSettings, Projection, RotationContrastive, SgdHeadSettings
from clom.learning.learners.cross_entropy import CrossEntropy, CrossEntropySettings
from clom.learning.loop import Plan, generator, shuffled_batches
from clom.learning.losses import supervised_contrastive
from clom.learning.optim import OptimiserSettings
from clom.learning.progress import Progress
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.learning.schedule import Schedule
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings, make_net
from clom.nets.layers import GatedConv2d

TINY = AlexNetSettings(
    channels=(8, 8, 16), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 1, 1), hidden=32, dropout=(0.0, 0.0)
)
NETS: list[NetSettings] = [TINY, ResNet18Settings(width=8)]
PLAIN = Augmentation(flip=False, colour=False, crop=False)


def attention(net: NetSettings = TINY, n_tasks: int = 1, **settings: float) -> HardAttention:
    torch.manual_seed(0)
    protection = HardAttention(make_net(net, 8), HardAttentionSettings.model_validate(settings))
    for _ in range(n_tasks):
        protection.add_task()
    return protection.eval()


def settings(**changes: Any) -> ContrastiveSettings:
    quick: dict[str, Any] = {"plan": Plan(epochs=1, batch=12), "head": HeadSettings(views=1, iterations=20)}
    return ContrastiveSettings(**{**quick, **changes})


def shared(protection: HardAttention) -> Tensor:
    return torch.cat([p.detach().flatten() for p in protection.net.shared_parameters()])


def test_labels_of_the_views() -> None:
    # Two images of two classes make sixteen views of eight classes.
    pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    views, classes = contrastive_views(pixels, torch.tensor([0, 1]), 2, PLAIN, generator(0))
    assert views.shape == (16, 3, 8, 8)
    assert classes.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] * 2


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.kind)
def test_with_open_gates_and_no_penalty_it_is_plain_contrastive_learning(
    net: NetSettings, tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same steps without gates, masks, protection or training loop lead to the same weights."""
    monkeypatch.setattr("clom.learning.protection.hard_attention.annealed_scale", lambda position, s_max: s_max)
    protection = attention(net, sparsity_first=0.0)
    with torch.no_grad():
        for embedding in protection.mask_parameters(0):
            embedding.fill_(6.0)
    bare = copy.deepcopy(protection.net).train()
    config = settings(
        plan=Plan(epochs=2, batch=8, schedule=Schedule(kind="constant")),
        optimiser=OptimiserSettings(kind="sgd", lr=0.1, momentum=0.9),
        gates_optimiser=OptimiserSettings(kind="sgd", lr=1e-9),
    )
    task = tiny_stream[0]
    torch.manual_seed(5)
    RotationContrastive(config).learn(protection, 0, task, 3, TrainingContext())

    torch.manual_seed(5)
    projection = Projection(bare.n_features, config.projection)
    weights = [*bare.parameters(), *projection.parameters()]
    optimiser = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    views, batches = generator(3, "views", 0), generator(3, "batches", 0)
    start = [parameter.detach().clone() for parameter in bare.shared_parameters()]
    for _ in range(2):
        for index in shuffled_batches(len(task.train), 8, batches):
            part = task.train[index]
            images, classes = contrastive_views(part.pixels, part.labels, 2, config.augmentation, views)
            optimiser.zero_grad()
            images = images.contiguous(memory_format=torch.channels_last)  # for bit-identical arithmetic
            z = F.normalize(projection(bare(images, 0, {})))
            supervised_contrastive(z, classes, 0.07).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    for parameter, before in zip(bare.shared_parameters(), start, strict=True):
        assert (parameter - before).abs().max().item() > 1e-4
    learned = dict(protection.net.named_parameters())
    for name, parameter in bare.named_parameters():
        torch.testing.assert_close(learned[name], parameter)


def test_loss_goes_down(tiny_stream: Stream) -> None:
    reports: list[Progress] = []
    config = settings(
        plan=Plan(epochs=15, batch=12), augmentation=PLAIN, optimiser=OptimiserSettings(kind="adam", lr=5e-3)
    )
    head = RotationContrastive(config).learn(attention(), 0, tiny_stream[0], 0, TrainingContext(reports.append))
    losses = [progress.loss for progress in reports if progress.phase == "features"]
    assert len(losses) == 30
    assert sum(losses[-4:]) / 4 < 0.9 * losses[0]
    assert head(torch.zeros(1, 32)).shape == (1, 8)
    assert {progress.phase for progress in reports} == {"features", "head"}
    assert reports[-1].done == reports[-1].total


def test_the_penalty_closes_gates(tiny_stream: Stream) -> None:
    def opened(strength: float) -> float:
        protection = attention(sparsity_first=strength)
        quick = OptimiserSettings(kind="adam", lr=0.3)
        learner = RotationContrastive(settings(plan=Plan(epochs=4, batch=12), gates_optimiser=quick))
        learner.learn(protection, 0, tiny_stream[0], 0, TrainingContext())
        return torch.cat(list(protection.gates(0).values())).mean().item()

    assert opened(100.0) < 0.7 * opened(0.0)


def test_without_rotations_the_head_has_one_output_per_class(tiny_stream: Stream) -> None:
    head = RotationContrastive(settings(rotations=1)).learn(attention(), 0, tiny_stream[0], 0, TrainingContext())
    assert head(torch.zeros(1, 32)).shape == (1, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"order": "authors"},
        {"authors_loss": True},
        {"sweep": 5},
        {"cross_entropy": 1.0},
        {"rotations": 1},
        {"augmentation": PLAIN},
        {"projection": 16},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_has_an_effect(change: dict[str, Any], tiny_stream: Stream) -> None:
    def learned(config: ContrastiveSettings) -> Tensor:
        protection = attention()
        RotationContrastive(config).learn(protection, 0, tiny_stream[0], 0, TrainingContext())
        return shared(protection)

    plain = learned(settings())
    torch.testing.assert_close(learned(settings()), plain, rtol=0, atol=0)
    assert not torch.allclose(learned(settings(**change)), plain, rtol=0, atol=1e-6)


def test_trained_head_learns_while_the_network_is_frozen(tiny_stream: Stream) -> None:
    reports: list[Progress] = []
    plan = Plan(epochs=30, batch=8, schedule=Schedule(kind="constant"))
    config = settings(
        augmentation=PLAIN, head=SgdHeadSettings(plan=plan, optimiser=OptimiserSettings(kind="adam", lr=0.1))
    )
    protection = attention(ResNet18Settings(width=8))
    states: dict[str, dict[str, Tensor]] = {}

    def report(progress: Progress) -> None:
        reports.append(progress)
        states.setdefault(progress.phase, copy.deepcopy(protection.state_dict()))

    head = RotationContrastive(config).learn(protection, 0, tiny_stream[0], 0, TrainingContext(report))
    assert list(states) == ["features", "head"]
    for name, value in protection.state_dict().items():
        assert torch.equal(value, states["head"][name]), name
    assert not torch.equal(protection.state_dict()["net.stem.weight"], states["features"]["net.stem.weight"])
    assert head(torch.zeros(1, 64)).shape == (1, 8)
    losses = [progress.loss for progress in reports if progress.phase == "head"]
    assert losses[0] == pytest.approx(2.08, abs=0.2)  # log 8
    assert sum(losses[-3:]) / 3 < losses[0] - 0.3


def test_a_trained_head_sees_two_views_of_each_image_in_all_rotations(
    tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 4 is a mean over the 8N views of a batch."""
    protection, seen = attention(), list[Tensor]()
    original = protection.features

    def recorded(images: Tensor, task: int) -> Tensor:
        seen.append(images)
        return original(images, task)

    monkeypatch.setattr(protection, "features", recorded)
    plan = Plan(epochs=1, batch=8)
    learner = RotationContrastive(settings(plan=plan, head=SgdHeadSettings(views=2, plan=plan)))
    learner.learn(protection, 0, tiny_stream[0], 0, TrainingContext())
    head_steps = seen[-3:]
    assert [len(images) for images in head_steps] == [8 * 8] * 3
    first, second = head_steps[0].chunk(2)
    assert not torch.equal(first, second)
    assert torch.equal(first[8:16], first[:8].rot90(1, (2, 3)))
    assert torch.equal(second[24:], second[:8].rot90(3, (2, 3)))


def test_view_features(tiny_stream: Stream) -> None:
    protection, task = attention(), tiny_stream[0]
    counted: list[tuple[int, int]] = []
    features, classes = view_features(
        lambda images: protection.features(images, 0),
        0,
        task,
        Augmentation(),
        4,
        2,
        7,
        batch=10,
        on_batch=lambda *done: counted.append(done),
    )
    n = len(task.train)
    assert n == 24
    assert features.shape == (2 * 4 * n, 32)
    assert torch.bincount(classes).tolist() == [24] * 8
    assert counted == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    randomness = generator(7, "head views", 0)
    part = task.train[slice(0, 10)]
    images, expected = classifier_views(part.pixels, part.labels, 2, Augmentation(), randomness)
    with torch.no_grad():
        torch.testing.assert_close(features[:40], protection.features(images, 0))
    assert torch.equal(classes[:40], expected)
    assert not torch.allclose(features[:40], features[4 * n : 4 * n + 40])  # the second view differs


def test_recomputed_norms_hold_mean_and_variance_of_the_batches() -> None:
    protection = attention(ResNet18Settings(width=8), n_tasks=2)
    layers = [layer for layer in protection.net.modules() if isinstance(layer, GatedConv2d)]
    assert len(layers) == 20
    seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """The inputs of the layer's batch norm."""
        assert isinstance(layer, GatedConv2d)
        seen[layer].append(F.conv2d(inputs[0], layer.weight, stride=layer.stride, padding=layer.padding))

    with torch.no_grad():
        for layer in layers:
            (norm,) = layer.norms_of(1)
            norm.running_mean = torch.full_like(norm.weight, 123.0)  # earlier statistics must not matter
            layer.register_forward_pre_hook(remember)
    others = {name: value.clone() for name, value in protection.state_dict().items() if ".norms.1." not in name}
    recompute_norms(protection, 1, [torch.rand(size, 3, 8, 8, generator=generator(size)) for size in (6, 5, 6)])

    for layer in layers:
        (norm,) = layer.norms_of(1)
        assert len(seen[layer]) == 3
        means = torch.stack([values.mean((0, 2, 3)) for values in seen[layer]]).mean(0)
        variances = torch.stack([values.transpose(0, 1).flatten(1).var(1) for values in seen[layer]]).mean(0)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        torch.testing.assert_close(norm.running_mean, means, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, variances, rtol=1e-4, atol=1e-5)
        assert norm.momentum == 0.1
    assert not any(module.training for module in protection.modules())
    assert all(torch.equal(protection.state_dict()[name], value) for name, value in others.items())


def test_norms_are_recomputed_with_the_final_mask() -> None:
    protection = attention(ResNet18Settings(width=8))
    with torch.no_grad():
        protection.embeddings_of(0)["stem"].fill_(-1.0)  # nothing passes the stem
    views = [torch.rand(6, 3, 8, 8)]
    recompute_norms(protection, 0, views)
    first = list(protection.net.gated_layers())[1].norms_of(0)[0]
    assert first.running_mean is not None
    assert torch.equal(first.running_mean, torch.zeros(8))


def test_networks_without_norms_are_unchanged() -> None:
    protection = attention()
    before = copy.deepcopy(protection.state_dict())
    recompute_norms(protection, 0, [torch.rand(6, 3, 8, 8)])
    assert all(torch.equal(value, before[name]) for name, value in protection.state_dict().items())
    assert not protection.training


def sorted_task(n_classes: int, per_class: int) -> Task:
    """A task sorted by class, as Tiny-ImageNet is on disk; each image is as bright as its class number."""
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    empty = Images(pixels[:0], labels[:0])
    return Task("sorted", tuple(map(str, range(n_classes))), Images(pixels, labels), empty)


def test_norms_of_sorted_data_see_every_class() -> None:
    views = list(training_views(sorted_task(8, 200), PLAIN, 4, 0, 0))
    assert [len(batch) for batch in views] == [4 * 128] * 8
    seen = [(255 * batch[:, 0, 0, 0]).round().long() for batch in views]
    assert torch.bincount(torch.cat(seen)).tolist() == [4 * 128] * 8  # 1,024 of 1,600 images
    for classes in seen:
        assert set(classes.tolist()) == set(range(8))


def test_norms_of_little_data_use_every_image_once_in_equal_batches() -> None:
    views = list(training_views(sorted_task(3, 50), PLAIN, 1, 0, 0, batch=60))
    assert [len(batch) for batch in views] == [75, 75]
    classes = (255 * torch.cat(views)[:, 0, 0, 0]).round().long()
    assert torch.bincount(classes).tolist() == [50] * 3
    assert len(set(classes[:75].tolist())) == 3


def test_norms_of_different_tasks_and_seeds_use_different_rows() -> None:
    task = sorted_task(4, 100)
    drawn = [next(training_views(task, PLAIN, 1, seed, number, 40, 40)) for seed, number in ((0, 0), (0, 1), (1, 0))]
    again = next(training_views(task, PLAIN, 1, 0, 0, 40, 40))
    assert torch.equal(drawn[0], again)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    "learner", [RotationContrastive(settings()), CrossEntropy(CrossEntropySettings(plan=Plan(epochs=1)))]
)
def test_after_learning_norms_hold_the_statistics_of_several_batches(learner: Learner) -> None:
    task, protection = sorted_task(2, 150), attention(ResNet18Settings(width=8))
    learner.learn(protection, 0, task, 3, TrainingContext())
    expected = copy.deepcopy(protection)
    augmentation = learner.settings.augmentation  # type: ignore[attr-defined]
    views = list(training_views(task, augmentation, learner.rotations, 3, 0))
    assert len(views) == 2
    recompute_norms(expected, 0, views)
    for name, value in protection.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
