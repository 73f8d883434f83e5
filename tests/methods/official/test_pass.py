"""PASS beside the authors' code: github.com/Impression2805/CVPR21_PASS, commit
8b799939e8a86b7b29d17f0745e3d9be28db1fa3.

`protoAugSSL.train` on two tasks of two classes, with one step per task on all images, without augmentation. Changed
there: the numbers of features and pixels, fixed draws of prototypes and noise, and SGD (learning rate 0.1) instead of
Adam, whose first step hardly depends on the gradient. In the second task the network starts from other weights than the
old one's, so that distillation matters.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.methods.pass_ import Pass, PassSettings
from methods.official.recording import Step, StepRecorder, differing, fill, wave
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

CROSS_ENTROPY, DISTANCE, PROTOTYPE_LOSS = 12.822105, 9.3886824, 5.2468772
FIRST = {
    "feature.conv1.weight": (0.033267864, -0.0074063299),
    "feature.bn1.weight": (0.0060967635, 9.1138735e-05),
    "feature.bn1.bias": (0.010373449, -0.0034501179),
    "feature.conv2.weight": (0.03775714, 0.0014579136),
    "feature.bn2.weight": (0.028879571, 0.0050556131),
    "feature.bn2.bias": (0.43236822, 0.40135261),
    "fc.weight": (0.64873521, 0.061454183),
    "fc.bias": (0.71200428, -0.09629734),
}
SECOND = {
    "feature.conv1.weight": (0.32516785, -0.04328777),
    "feature.bn1.weight": (0.30383814, 0.038439298),
    "feature.bn1.bias": (0.18067123, 0.07828084),
    "feature.conv2.weight": (0.64668171, 0.075020384),
    "feature.bn2.weight": (1.8655627, 1.7653803),
    "feature.bn2.bias": (8.9021845, 0.66645763),
    "fc.weight": (4.2158086, -0.68907641),
    "fc.bias": (7.7871245, -1.3242614),
}
"""The change of every tensor by a step: `digest`."""
RADIUS = 0.17977984
PROTOTYPES = [
    [-0.24013284, -0.20785443, -0.0081406655, 0.16179799, 0.22774124, 0.20430911],
    [-0.26539248, -0.21820679, 0.10856912, 0.16894642, 0.26282018, 0.25996742],
    [-1.7214874, -4.2467813, -4.5568995, -2.18437, 1.4211024, 4.6170106],
    [-1.7281158, -4.2420468, -4.3503394, -1.9274375, 1.423882, 4.6144805],
]


@pytest.fixture(autouse=True)
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old classes in turn, and a wave as noise."""

    def in_turn(high: int, size: tuple[int, ...], **_: object) -> Tensor:
        return torch.arange(size[0]) % high

    def noise(*shape: int, **_: object) -> Tensor:
        return wave(shape, 40)

    monkeypatch.setattr(torch, "randint", in_turn)
    monkeypatch.setattr(torch, "randn", noise)


def make(**settings: Any) -> Pass:
    common = {
        "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
        "optimiser": {"kind": "sgd", "lr": 0.1, "weight_decay": 2e-4},
    }
    return Pass(tiny_network(), PassSettings.model_validate(common | settings), SHAPE)


def first_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    fill(parameters[:6], 0, 0.5)
    fill(parameters[6:], 7, 0.5)


def other_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    fill(parameters[:6], 20, 0.5)
    fill(parameters[8:], 30, 0.5)


def learned(method: Pass) -> list[Step]:
    recorders = StepRecorder(first_weights), StepRecorder(other_weights)
    for number, recorder in enumerate(recorders):
        method.learn(numbered_task(number), recorder)
    return [step for recorder in recorders for step in recorder.recorded]


def test_steps_are_the_official_ones() -> None:
    first, second = learned(make())
    assert first.loss == pytest.approx(7.1021223, abs=1e-5)
    assert differing(first.changes, FIRST) == []
    assert second.loss == pytest.approx(CROSS_ENTROPY + 10 * PROTOTYPE_LOSS + 10 * DISTANCE, rel=1e-6)
    *backbone, old_weight, old_bias, new_weight, new_bias = second.changes
    changes = [*backbone, torch.cat([old_weight, new_weight]), torch.cat([old_bias, new_bias])]
    assert differing(changes, SECOND) == []


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"prototypes": 0.0, "distillation": 0.0}, CROSS_ENTROPY),
        ({"prototypes": 1.0, "distillation": 0.0}, CROSS_ENTROPY + PROTOTYPE_LOSS),
        ({"prototypes": 0.0, "distillation": 1.0}, CROSS_ENTROPY + DISTANCE),
    ],
)
def test_terms_are_the_official_ones(weights: dict[str, float], expected: float) -> None:
    assert learned(make(**weights))[1].loss == pytest.approx(expected, abs=1e-5)


def test_prototypes_and_radius_are_the_official_ones() -> None:
    method = make()
    learned(method)
    assert float(method.radius) == pytest.approx(RADIUS, abs=1e-5)
    torch.testing.assert_close(method.prototypes, torch.tensor(PROTOTYPES), atol=1e-5, rtol=1e-5)
