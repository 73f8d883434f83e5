"""SupSup beside the official code: github.com/RAIVNLab/supsup, commit 6a31878423c58ecf496712a23d418c7b1b05451e.

One step on the second task by `trainers/default.py` with `rn18-supsup.yaml`: GEMResNet18 of `MultitaskMaskConv` and
`MultitaskNonAffineBN`, signed constants, Erdos-Renyi densities (rho = 2), weight decay 1e-4. The network is of width 4,
and its images are normalised like ours. The optimiser is SGD, since Adam's first step has the same length for every
gradient, even for one that is mere rounding.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from clom.learning.learners.cross_entropy import CrossEntropySettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.protection.supermask import Supermask, SupermaskSettings
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.supsup import SupSup, SupSupSettings
from clom.nets import ResNet18Settings
from methods.official.recording import StepRecorder, differing, fill, fixed_task, in_order, wave

__all__ = ["in_order"]

LOSS = 0.68348455
CHANGES = {
    "conv1": (1.2450833, -0.06013368),
    "layer1.0.conv1": (1.1714834, -0.023174245),
    "layer1.0.conv2": (0.98376808, -0.04630687),
    "layer1.1.conv1": (0.99830024, 0.15274115),
    "layer1.1.conv2": (0.63670897, -0.059476917),
    "layer2.0.conv1": (0.74975246, -0.030768991),
    "layer2.0.conv2": (0.7723025, -0.019949629),
    "layer2.0.shortcut": (0.26899624, -0.0026440076),
    "layer2.1.conv1": (0.58830173, 0.0048330322),
    "layer2.1.conv2": (0.63076131, 0.0012341492),
    "layer3.0.conv1": (0.68097849, 0.00047352183),
    "layer3.0.conv2": (5.566246, -0.12986778),
    "layer3.0.shortcut": (8.3478033, -0.79592749),
    "layer3.1.conv1": (0.66784912, -0.0084669755),
    "layer3.1.conv2": (0.58850394, 0.0070968222),
    "layer4.0.conv1": (0.53247506, -0.0027167886),
    "layer4.0.conv2": (0.65402523, -0.0069880141),
    "layer4.0.shortcut": (9.4749013, 0.86967062),
    "layer4.1.conv1": (0.61867328, -0.013427312),
    "layer4.1.conv2": (3.7365368, 0.0085455168),
    "linear": (0.19991785, -0.015609342),
}
"""Of the scores of the second task's masks."""


@pytest.mark.usefixtures("in_order")
def test_a_step_on_the_second_task_is_the_official_one() -> None:
    sgd = OptimiserSettings(kind="sgd", lr=1.0, momentum=0.9, weight_decay=1e-4)
    plan = Plan(epochs=1, batch=8, schedule=Schedule(kind="constant"))
    settings = SupSupSettings(
        calibration="none",
        supermask=SupermaskSettings(sparsity=2.0),
        learning=CrossEntropySettings(plan=plan, optimiser=sgd, gates_optimiser=sgd),
    )
    method = SupSup(ResNet18Settings(width=4), settings, (3, 32, 32))
    protection = method.protection
    assert isinstance(protection, Supermask)
    weights = protection.net.shared_parameters()
    with torch.no_grad():
        for number, weight in enumerate(weights):
            weight.copy_(wave(weight.shape, number).sign() * math.sqrt(2 / weight[0].numel()))
        protection.head_signs[:2] = wave((2, 32), len(weights)).sign()
    method.open_task(LearnedTask("first", ("a", "b")))
    fill(protection.mask_parameters(0), 50)

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        fill([*parameters[1:], parameters[0]], 100)  # the head's mask is the first

    recorder = StepRecorder(start)
    method.learn(fixed_task(8, 3, 32), recorder)
    (step,) = recorder.recorded
    assert step.loss == pytest.approx(LOSS, abs=1e-5)
    head, *others = step.changes
    assert differing([*others, head], CHANGES) == []
