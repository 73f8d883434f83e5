"""CCG: the specification's numbers, streams that never change, and learning on digits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.wgan import gradient_penalty
from clom.methods.base import LearnedTask
from clom.methods.ccg import Ccg, CcgSettings, TaskClassifier
from clom.nets import AlexNetSettings
from clom.nets.conditional import (
    ConditionalResNet,
    ConditionalResNetSettings,
    ConvSettings,
    binary_concrete,
    logistic_noise,
)
from methods.check import check_method

NETWORKS = {"conv": ConvSettings(channels=(8, 8, 12)), "resnet": ConditionalResNetSettings(width=4)}


def make(seed: int = 0, **settings: Any) -> Ccg:
    defaults = {"network": NETWORKS["conv"], "plan": {"epochs": 2, "batch": 16}, "memory": 12, "patience": 1}
    return Ccg(AlexNetSettings(), CcgSettings.model_validate(defaults | settings), (1, 8, 8), seed)


@pytest.mark.parametrize("network", NETWORKS)
def test_is_a_method(network: str, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed, network=NETWORKS[network]), tiny_stream)


def test_is_a_method_with_generators_and_the_hard_rule(tiny_stream: Stream) -> None:
    wgan = {"steps": 2, "batch": 8, "width": 4, "critic_steps": 1}
    check_method(lambda seed: make(seed, rehearsal="generative", wgan=wgan, rule="hard"), tiny_stream)


@pytest.mark.parametrize(("logit", "value", "slope"), [(0.0, 0, 0.375), (1.0, 1, 0.2237197), (-2.0, 0, 0.0677650)])
def test_straight_through_gate(logit: float, value: int, slope: float) -> None:
    logits = torch.tensor([logit], requires_grad=True)
    gate = binary_concrete(logits)
    gate.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert gate.item() == pytest.approx(value, abs=1e-6)
    assert logits.grad.item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize(("logit", "rate"), [(0.0, 0.5), (1.0, 0.7310586), (-1.0, 0.2689414)])
def test_firing_rate_with_logistic_noise(logit: float, rate: float) -> None:
    torch.manual_seed(0)
    logits = torch.full((200_000,), logit)
    assert binary_concrete(logits, logistic_noise(logits)).mean().item() == pytest.approx(rate, abs=0.005)


def test_sparsity_is_the_mean_share_of_open_channels() -> None:
    # Two layers of 100 channels, 30 and 50 on, strength .5 -> .2: the term that `_loss` adds.
    gates = [torch.cat([torch.ones(4, on), torch.zeros(4, 100 - on)], 1) for on in (30, 50)]
    assert 0.5 * torch.stack([gate.mean() for gate in gates]).mean().item() == pytest.approx(0.2)


def test_old_streams_never_change(tiny_stream: Stream) -> None:
    """With locked gates the outputs are bit-identical on any input, far away ones included."""
    for network in NETWORKS.values():
        method = make(network=network)
        method.learn(tiny_stream[0])
        far = 3 * torch.randn(500, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        before = method.stream(far, 0)
        method.learn(tiny_stream[1])
        method.learn(tiny_stream[2])
        assert torch.equal(method.stream(far, 0), before)


def test_unlocked_gates_would_let_old_streams_change(tiny_stream: Stream) -> None:
    """Why gates are locked: a channel that never fired before may fire on a far input, and is another one by then."""
    torch.manual_seed(0)
    method = make().learn(tiny_stream[0])
    layers = list(method.net.layers())
    shown = (tiny_stream[0].validation.pixels / 255).expand(-1, 3, -1, -1)
    far = 5 * torch.randn(4000, 1, 8, 8).expand(-1, 3, -1, -1)
    with torch.no_grad():
        for layer in layers:  # a gate network that closes about half of the channels, depending on the image
            layer.gate(0).second.bias.zero_()
            layer.gate(0).second.weight.normal_()
        fired = [gate.amax(0) for gate in method.net(shown, 0)[1]]
    assert any(bool((channels == 0).any()) for channels in fired)

    def changed(images: torch.Tensor, locked: bool) -> bool:
        for layer, channels in zip(layers, fired, strict=True):
            layer.gate(0).relevant.copy_(channels if locked else torch.ones_like(channels))
        before = method.stream(images, 0)
        with torch.no_grad():
            for layer, channels in zip(layers, fired, strict=True):
                for kernel in layer.kernels():
                    kernel[channels == 0] = torch.randn_like(kernel)[channels == 0]
        return not torch.equal(method.stream(images, 0), before)

    assert not changed(shown, locked=False)
    assert changed(far, locked=False)
    assert not changed(far, locked=True)


def test_frozen_kernels_ignore_decay_and_momentum(tiny_stream: Stream) -> None:
    optimiser = {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    method = make(optimiser=optimiser).learn(tiny_stream[0])
    layers = list(method.net.layers())
    frozen = [layer.frozen(1) > 0 for layer in layers]
    assert all(bool(mask.any()) for mask in frozen)
    before = [layer.kernels()[0].detach()[mask].clone() for layer, mask in zip(layers, frozen, strict=True)]
    method.learn(tiny_stream[1])
    after = [layer.kernels()[0].detach()[mask] for layer, mask in zip(layers, frozen, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_memory_is_shared_by_the_tasks(digits: DataSet) -> None:
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


@pytest.mark.parametrize(("rule", "answer"), [("hard", 0), ("soft", 2)])
def test_rules(rule: str, answer: int, tiny_stream: Stream) -> None:
    # p(t) = [.6, .4], p(y|t) = [.55, .45], [.95, .05]: the hard rule answers class 0, the soft one class 2 (.38).
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
    assert scores.argmax().item() == answer
    if rule == "soft":
        assert scores.max().exp().item() == pytest.approx(0.38, abs=1e-5)


def test_the_task_classifier_grows_without_changing_its_mind() -> None:
    classifier = TaskClassifier(6)
    classifier.grow()
    classifier.grow()
    nn.init.normal_(classifier.bias)
    streams = [torch.randn(4, 6) for _ in range(3)]
    before = classifier(streams[:2])
    classifier.grow()
    torch.testing.assert_close(classifier(streams)[:, :2], before)


def test_sizes_of_gates_and_task_classifier() -> None:
    with torch.device("meta"):
        net = ConditionalResNet(ConditionalResNetSettings(width=64))
        net.add_task()
        classifier = TaskClassifier(512)
        for _ in range(5):
            classifier.grow()
    assert sum(p.numel() for layer in net.layers() for p in layer.gate(0).parameters()) == 114_336
    assert sum(p.numel() for p in classifier.parameters()) == 164_229


def test_learns_digits_and_names_their_tasks(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=80, test_per_class=25)
    method = make(network=ConvSettings(channels=(24, 24, 32)), plan={"epochs": 25, "batch": 32}, memory=120, patience=5)
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    assert evaluation.til > 0.9
    assert evaluation.preferred.cil > 0.65  # guessing the task would give a third
