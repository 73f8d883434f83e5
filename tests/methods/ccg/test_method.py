"""CCG: reference values, head outputs of old tasks that never change, and accuracy on digits."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.data.images import DataSet, to_unit
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection.hard_attention import UpdateMask
from clom.methods.ccg.gated_network import (
    ConditionalResNet,
    ConditionalResNetSettings,
    ConvSettings,
    TaskClassifier,
    binary_concrete,
    logistic_noise,
)
from clom.methods.ccg.method import Ccg, CcgSettings, open_share
from clom.methods.ccg.wgan import Generator, WganSettings, gradient_penalty, make_critic, train_generator
from clom.methods.families.base import LearnedTask
from clom.nets import AlexNetSettings
from clom.testing import check_method

# Such a short training leaves most gates open; tests that need free channels check that there are some.
pytestmark = pytest.mark.filterwarnings("ignore:No channel is free")

NETWORKS = {"conv": ConvSettings(channels=(8, 8, 12)), "resnet": ConditionalResNetSettings(width=4)}


def make(seed: int = 0, **settings: Any) -> Ccg:
    defaults = {"network": NETWORKS["conv"], "plan": {"epochs": 2, "batch": 16}, "memory": 12, "patience": 1}
    return Ccg(AlexNetSettings(), CcgSettings.model_validate(defaults | settings), (1, 8, 8), seed)


@pytest.mark.parametrize("network", NETWORKS)
def test_is_a_method(network: str, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed, network=NETWORKS[network]), tiny_stream)


def test_is_a_method_with_generative_rehearsal_and_the_hard_rule(tiny_stream: Stream) -> None:
    wgan = {"steps": 2, "batch": 8, "width": 4, "critic_steps": 1}
    check_method(lambda seed: make(seed, rehearsal="generative", wgan=wgan, rule="hard"), tiny_stream)


@pytest.mark.parametrize(("logit", "value", "slope"), [(0.0, 0, 0.375), (1.0, 1, 0.2237197), (-2.0, 0, 0.0677650)])
def test_straight_through_gate(logit: float, value: int, slope: float) -> None:
    logits = torch.tensor([logit], requires_grad=True)
    gate = binary_concrete(logits)
    gate.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert gate.item() == value
    assert logits.grad.item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize(("logit", "rate"), [(0.0, 0.5), (1.0, 0.7310586), (-1.0, 0.2689414)])
def test_opening_rate_with_logistic_noise(logit: float, rate: float) -> None:
    torch.manual_seed(0)
    logits = torch.full((200_000,), logit)
    assert binary_concrete(logits, logistic_noise(logits)).mean().item() == pytest.approx(rate, abs=0.005)


def test_sparsity_is_the_mean_share_of_open_channels() -> None:
    # Two layers of 100 channels, 30 and 50 on, strength .5 -> .2.
    gates = [torch.cat([torch.ones(4, on), torch.zeros(4, 100 - on)], 1) for on in (30, 50)]
    assert 0.5 * open_share(gates).item() == pytest.approx(0.2)
    # All layers have equal weight, regardless of their number of channels.
    assert open_share([torch.ones(4, 2), torch.zeros(4, 100)]).item() == pytest.approx(0.5)


def test_old_head_outputs_never_change(tiny_stream: Stream) -> None:
    """With locked gates, outputs are bit-identical on any input, even far from the training data."""
    closing: dict[str, Any] = {"sparsity": 1.0, "patience": 0, "gates_optimiser": {"kind": "adam", "lr": 0.25}}
    for network in NETWORKS.values():
        method = make(network=network, **closing).learn(tiny_stream[0])
        layers = list(method.net.layers())
        free = [layer.frozen_channels(1) == 0 for layer in layers]
        assert any(bool(mask.any() and not mask.all()) for mask in free)
        far = 3 * torch.randn(500, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        before, kernels = method.head_outputs(far, 0), [layer.kernels()[0].detach().clone() for layer in layers]
        assert bool((before.std(0) > 0).all())
        method.learn(tiny_stream[1])
        method.learn(tiny_stream[2])
        assert torch.equal(method.head_outputs(far, 0), before)
        now = [layer.kernels()[0].detach() for layer in layers]
        assert any(not torch.equal(a[mask], b[mask]) for a, b, mask in zip(kernels, now, free, strict=True))


def test_without_locked_gates_old_outputs_would_change(tiny_stream: Stream) -> None:
    """A channel that was never open on the task's data may open for a distant input after it was reused."""
    torch.manual_seed(0)
    method = make().learn(tiny_stream[0])
    layers = list(method.net.layers())
    own = (tiny_stream[0].validation.pixels / 255).expand(-1, 3, -1, -1)
    far = 5 * torch.randn(4000, 1, 8, 8).expand(-1, 3, -1, -1)
    with torch.no_grad():
        for layer in layers:  # a gate network that closes about half of the channels, depending on the image
            layer.gate(0).second.bias.zero_()
            layer.gate(0).second.weight.normal_()
        opened = [gate.amax(0) for gate in method.net(own, 0)[1]]
    assert any(bool((channels == 0).any()) for channels in opened)

    def changed(images: torch.Tensor, locked: bool) -> bool:
        for layer, channels in zip(layers, opened, strict=True):
            layer.gate(0).relevant.copy_(channels if locked else torch.ones_like(channels))
        before = method.head_outputs(images, 0)
        with torch.no_grad():
            for layer, channels in zip(layers, opened, strict=True):
                for kernel in layer.kernels():
                    kernel[channels == 0] = torch.randn_like(kernel)[channels == 0]
        return not torch.equal(method.head_outputs(images, 0), before)

    assert not changed(own, locked=False)
    assert changed(far, locked=False)
    assert not changed(far, locked=True)


def test_frozen_kernels_ignore_decay_and_momentum(tiny_stream: Stream) -> None:
    optimiser = {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    method = make(optimiser=optimiser).learn(tiny_stream[0])
    layers = list(method.net.layers())
    frozen = [layer.frozen_channels(1) > 0 for layer in layers]
    assert all(bool(mask.any()) for mask in frozen)
    before = [layer.kernels()[0].detach()[mask].clone() for layer, mask in zip(layers, frozen, strict=True)]
    method.learn(tiny_stream[1])
    after = [layer.kernels()[0].detach()[mask] for layer, mask in zip(layers, frozen, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def step_without_gradient(weight: nn.Parameter, optimiser: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        weight.grad = torch.zeros_like(weight)
        optimiser.step()


def test_frozen_weights_and_decay() -> None:
    # After 100 steps with zero gradients, weight decay gives .9553441; a masked weight stays 1.
    settings = OptimiserSettings(kind="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4)
    for closed, expected in ((0.0, 0.9553441), (1.0, 1.0)):
        weight = nn.Parameter(torch.ones(1))
        update_mask, optimiser = UpdateMask(weight, torch.tensor([closed])), make_optimiser([(settings, [weight])])
        for _ in range(100):
            step_without_gradient(weight, optimiser, 1)
            update_mask.restore()
        assert weight.item() == pytest.approx(expected, abs=1e-6)
    assert weight.item() == 1.0


@pytest.mark.parametrize(("fresh", "expected"), [(False, 0.0046386), (True, 0.9)])
def test_momentum_of_an_old_task_needs_a_new_optimiser(fresh: bool, expected: float) -> None:
    settings = OptimiserSettings(kind="sgd", lr=0.1, momentum=0.9)
    weight = nn.Parameter(torch.ones(1))
    optimiser = make_optimiser([(settings, [weight])])
    weight.grad = torch.ones(1)
    optimiser.step()
    step_without_gradient(weight, make_optimiser([(settings, [weight])]) if fresh else optimiser, 50)
    assert weight.item() == pytest.approx(expected, abs=1e-6)


def test_each_task_has_a_new_optimiser(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    method.open_task(LearnedTask("more", ("x", "y")))
    kernels = [kernel for layer in method.net.layers() for kernel in layer.kernels()]
    optimiser = method._optimiser(kernels)
    assert not optimiser.state
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    old = [method.heads[0], *(part[0] for layer in method.net.layers() for part in (layer.norms, layer.gates))]
    new = [method.heads[1], *(part[1] for layer in method.net.layers() for part in (layer.norms, layer.gates))]
    assert not trained & {id(parameter) for module in old for parameter in module.parameters()}
    expected = [*kernels, *method.task_classifier.parameters(), *(p for module in new for p in module.parameters())]
    assert trained == {id(parameter) for parameter in expected}


def test_rehearsal_is_balanced_and_sparsity_starts_late(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(plan={"epochs": 3, "batch": 8}, patience=2, sparsity=0.25)
    seen: list[tuple[list[int], int, float]] = []
    original = Ccg._loss

    def spy(self: Ccg, images: Tensor, tasks: Tensor, labels: Tensor, sparsity: float) -> Tensor:
        assert len(images) == len(tasks)
        assert bool((tasks[: len(labels)] == len(self.tasks) - 1).all())
        seen.append((tasks.bincount().tolist(), len(labels), sparsity))
        return original(self, images, tasks, labels, sparsity)

    monkeypatch.setattr(Ccg, "_loss", spy)
    for number, task in enumerate(tiny_stream):
        seen.clear()
        method.learn(task)  # 24 images: three batches of eight in each of three epochs
        assert [sparsity for _, _, sparsity in seen] == [0.0] * 6 + [0.25] * 3
        assert [counts for counts, _, _ in seen] == [[[8], [8, 8], [4, 4, 8]][number]] * 9
        assert all(n_labels == 8 for _, n_labels, _ in seen)


def test_the_task_loss_gives_each_task_the_same_weight(tiny_stream: Stream) -> None:
    method = make(sparsity=0.0)
    for task in tiny_stream[:2]:
        method.learn(task)
    images = to_unit(tiny_stream[0].train.pixels[:9])
    tasks, labels = torch.tensor([1] * 6 + [0] * 3), torch.zeros(6, dtype=torch.int64)
    with torch.no_grad():
        loss = method._loss(images, tasks, labels, 0.0)
        features = [method.net(images, task)[0] for task in (0, 1)]
        losses = -method.task_classifier(features).log_softmax(1)[torch.arange(9), tasks]
        classes = nn.functional.cross_entropy(method.heads[1](features[1][:6]), labels)
    torch.testing.assert_close(loss, classes + (losses[:6].mean() + losses[6:].mean()) / 2)


@pytest.mark.parametrize(("threshold", "relevant"), [(0.0, [1, 1, 0]), (0.2, [0, 1, 0]), (0.5, [0, 0, 0])])
def test_relevance_is_a_fraction_of_images(
    threshold: float, relevant: list[int], tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of eight images, channel 0 is open on one, channel 1 on four, channel 2 on none.
    method = make(network=ConvSettings(channels=(3,)), threshold=threshold)
    method.open_task(LearnedTask("one", ("a", "b")))
    gates = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    monkeypatch.setattr(method.net, "forward", lambda images, task: (images, [gates.float()]))
    (layer,) = method.net.layers()
    (kernel,) = layer.kernels()
    before = kernel.detach().clone()
    method._freeze(tiny_stream[0])
    frozen = torch.tensor(relevant, dtype=torch.bool)
    assert torch.equal(layer.gate(0).relevant, frozen.float())
    assert torch.equal(kernel.detach()[frozen], before[frozen])
    assert not torch.isclose(kernel.detach()[~frozen], before[~frozen]).all(-1).any()


def test_a_full_layer_is_warned_about_once(tiny_stream: Stream) -> None:
    method = make(sparsity=0.0)  # gates start open and stay open
    with pytest.warns(UserWarning, match="No channel is free after task 'task 1' in layer 1, 2, 3"):
        method.learn(tiny_stream[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.learn(tiny_stream[1])


def test_a_closed_layer_is_warned_about(tiny_stream: Stream) -> None:
    method = make(sparsity=50.0, patience=0, gates_optimiser={"kind": "adam", "lr": 1.0})
    with pytest.warns(UserWarning, match="Task 'task 1' closed every channel of layer"):
        method.learn(tiny_stream[0])


def test_impossible_settings_are_refused(tiny_stream: Stream) -> None:
    method = make(memory=1).learn(tiny_stream[0])
    with pytest.raises(UserError, match="memory of 1 images"):
        method.learn(tiny_stream[1])
    assert len(method.tasks) == 1
    with pytest.raises(UserError, match="at least two images"):
        make(plan={"epochs": 1, "batch": 1}).learn(tiny_stream[0])


def test_generators_do_not_count_as_parameters() -> None:
    methods = [make(), make(rehearsal="generative")]
    for method in methods:
        method.open_task(LearnedTask("one", ("a", "b")))
    assert methods[0].n_parameters() == methods[1].n_parameters()


@pytest.mark.parametrize("side", [8, 10, 13])
def test_generators_and_critics_fit_any_side(side: int) -> None:
    settings = WganSettings(width=4, latent=8)
    images = Generator(settings, 3, side).sample(2, torch.Generator())
    assert images.shape == (2, 3, side, side)
    assert make_critic(settings, 3, side)(images).shape == (2, 1)


def test_a_generator_learns_the_images() -> None:
    torch.manual_seed(0)
    real = torch.zeros(32, 1, 8, 8)
    real[..., :4] = 0.9
    settings = WganSettings(steps=60, critic_steps=2, batch=16, lr=5e-3, latent=8, width=4)
    generator = Generator(settings, 1, 8)
    train_generator(generator, real, settings, torch.Generator().manual_seed(0), 0, TrainingContext())
    samples = generator.sample(64, torch.Generator().manual_seed(1))
    assert samples[..., :4].mean().item() > samples[..., 4:].mean().item() + 0.3


@pytest.mark.slow
def test_rehearses_generated_digits(digits: DataSet) -> None:
    """Without any stored image, generated digits of the first task teach the task classifier to recognise real ones."""
    stream = split(digits, [2, 2], train_per_class=80, test_per_class=25)
    settings: dict[str, Any] = {
        "network": ConvSettings(channels=(24, 24, 32)),
        "plan": {"epochs": 12, "batch": 32},
        "patience": 2,
        "sparsity": 1.0,
        "optimiser": {"kind": "adam", "lr": 3e-3},
        "gates_optimiser": {"kind": "adam", "lr": 0.05},
        "rehearsal": "generative",
    }
    detected = {}
    for steps in (300, 1):
        wgan = {"steps": steps, "width": 16, "batch": 16, "critic_steps": 2, "lr": 2e-3, "latent": 16}
        method = make(**settings, wgan=wgan)
        for task in stream:
            method.learn(task)
        book = Scorebook(stream.tests)
        book.update(method)
        detected[steps] = evaluate(book, method.calibrations()).preferred.task_detection
        assert method.memory_bytes == 0
    assert detected[300] > 0.75  # 0.90 and 0.79 for two seeds
    assert detected[1] < 0.65, "noise teaches nothing"


def test_memory_is_divided_among_tasks(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2, 2, 2], train_per_class=120, test_per_class=5)
    method = make(memory=200, plan={"epochs": 1, "batch": 64})
    counts = []
    for task in stream:
        method.learn(task)
        counts.append(torch.unique(torch.bincount(method.memory.tasks)).tolist())
    assert counts == [[200], [100], [66], [50], [40]]
    assert method.memory_bytes == 5 * 40 * 64


def test_gradient_penalty_of_a_linear_critic() -> None:
    critic = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        critic.weight.copy_(torch.tensor([[3.0, 0.0]]))
    real, fake = torch.rand(5, 2), torch.rand(5, 2)
    penalty = 10 * gradient_penalty(critic, real, fake, torch.Generator())
    assert penalty.item() == pytest.approx(40)


@pytest.mark.parametrize(("rule", "predicted"), [("hard", 0), ("soft", 2)])
def test_rules(rule: str, predicted: int, tiny_stream: Stream) -> None:
    # p(t) = [.6, .4], p(y|t) = [.55, .45], [.95, .05]: the hard rule predicts class 0, the soft one class 2 (.38).
    method = make(rule=rule)
    for name, probabilities in (("one", (0.55, 0.45)), ("two", (0.95, 0.05))):
        method.open_task(LearnedTask(name, (f"{name} a", f"{name} b")))
        head = method.heads[-1]
        assert isinstance(head, nn.Linear)
        nn.init.zeros_(head.weight)
        head.bias.data = torch.tensor(probabilities).log()
    for part, p_task in zip(method.task_classifier.rows.parts, (0.6, 0.4), strict=True):
        assert isinstance(part, nn.Linear)
        nn.init.zeros_(part.weight)
        nn.init.constant_(part.bias, math.log(p_task))
    scores = torch.cat(method.blocks(tiny_stream.tests[0].pixels[:1]), 1)
    assert scores.argmax().item() == predicted
    if rule == "soft":
        assert scores.max().exp().item() == pytest.approx(0.38, abs=1e-5)


def test_growing_does_not_change_the_task_classifier() -> None:
    classifier = TaskClassifier(6)
    classifier.grow()
    classifier.grow()
    nn.init.normal_(classifier.bias)
    features = [torch.randn(4, 6) for _ in range(3)]
    before = classifier(features[:2])
    classifier.grow()
    torch.testing.assert_close(classifier(features)[:, :2], before)


def test_sizes_of_gates_and_task_classifier() -> None:
    with torch.device("meta"):
        net = ConditionalResNet(ConditionalResNetSettings(width=64))
        net.add_task()
        classifier = TaskClassifier(512)
        for _ in range(5):
            classifier.grow()
    assert sum(p.numel() for layer in net.layers() for p in layer.gate(0).parameters()) == 114_336
    assert sum(p.numel() for p in classifier.parameters()) == 164_229


def test_learns_digits_and_predicts_their_tasks(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=80, test_per_class=25)
    method = make(
        network=ConvSettings(channels=(24, 24, 32)),
        plan={"epochs": 15, "batch": 32},
        memory=120,
        patience=2,
        sparsity=1.0,
        optimiser={"kind": "adam", "lr": 3e-3},
        gates_optimiser={"kind": "adam", "lr": 0.05},
    )
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    assert min(evaluation.til_by_task) > 0.9
    assert evaluation.preferred.cil > 0.75  # a third if tasks were guessed
    assert max(used[0] for used in method.capacity().values()) < 0.9  # the first task leaves free channels
