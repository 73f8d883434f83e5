"""HyperNet beside the official code: github.com/chrhenning/hypercl, commit e32567889f772f8de783a437ff0beb2d426bc7b6.

Two steps of `train_class_one_t` of `mnist/train_splitMNIST.py` on the third task, with a small chunked hypernetwork and
a small perceptron. All tasks generate a head of two rows (the official `cl_scenario` 2): in the official scenario with
known tasks, the rows of a task are at a place of their own among the outputs of the hypernetwork, while ours generates
every head at the same place.

The official code looks ahead by its own version of Adam, that of PyTorch in 2019, whose epsilon weighed more in the
first steps: with Adam, the gradients of the regulariser agree to 5e-4 only. With SGD they agree to 1e-5.
"""

from __future__ import annotations

import pytest
from torch import nn

from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.hypernet.method import HyperLearningSettings, HyperNet, HyperNetSettings, HypernetworkSettings
from clom.methods.hypernet.targets import MlpTargetSettings
from clom.nets import ResNet18Settings
from methods.official.recording import Digest, StepRecorder, differing, fill, fixed_task, in_order

__all__ = ["in_order"]

OfficialStep = tuple[float, dict[str, Digest], dict[str, Digest]]

SGD = [
    (
        0.67011178,
        {
            "chunk vectors": (0.15919174, 0.0019266963),
            "layer 1.weight": (0.53595891, -0.12017314),
            "layer 1.bias": (0.35411412, -0.25402406),
            "layer 2.weight": (0.35790954, 0.0082090544),
            "layer 2.bias": (0.11509421, 0.0058594536),
            "task vector": (0.18605, -0.16068203),
        },
        {
            "chunk vectors": (0.015919157, -0.00019267663),
            "layer 1.weight": (0.053595906, 0.012017307),
            "layer 1.bias": (0.035411425, 0.025402397),
            "layer 2.weight": (0.035790959, -0.00082089973),
            "layer 2.bias": (0.01150945, -0.0005859586),
            "task vector": (0.018605007, 0.016068219),
        },
    ),
    (
        0.63687897,
        {
            "chunk vectors": (2.8558921, -0.25481704),
            "layer 1.weight": (7.0960534, 1.316563),
            "layer 1.bias": (5.7393934, 3.5090512),
            "layer 2.weight": (5.0307852, -0.074093233),
            "layer 2.bias": (2.5782556, -0.22912133),
            "task vector": (0.13567438, 0.067806332),
        },
        {
            "chunk vectors": (0.27372743, 0.025308299),
            "layer 1.weight": (0.66727726, -0.12084074),
            "layer 1.bias": (0.54485035, -0.32804296),
            "layer 2.weight": (0.47672512, 0.0066704961),
            "layer 2.bias": (0.24786021, 0.02238479),
            "task vector": (0.01150799, 0.0076807711),
        },
    ),
]
ADAM = [
    (
        0.67011178,
        {
            "chunk vectors": (0.60366404, 0.044515617),
            "layer 1.weight": (1.397089, -0.44677673),
            "layer 1.bias": (1.0511421, -0.87331291),
            "layer 2.weight": (1.2436163, -0.090125534),
            "layer 2.bias": (0.52833696, 0.071632247),
            "task vector": (0.18605, -0.16068203),
        },
        {
            "chunk vectors": (0.0387298, -0.0052942902),
            "layer 1.weight": (0.064807342, 0.0088452085),
            "layer 1.bias": (0.02449488, 0.01929945),
            "layer 2.weight": (0.10582891, 0.00062027541),
            "layer 2.bias": (0.044721325, -0.008744288),
            "task vector": (0.019999985, 0.013520067),
        },
    ),
    (
        0.63494009,
        {
            "chunk vectors": (3.244327, -0.21467586),
            "layer 1.weight": (6.4277086, 2.3325035),
            "layer 1.bias": (5.1161672, 4.1990087),
            "layer 2.weight": (6.1449044, 0.28985771),
            "layer 2.bias": (2.6768072, -0.5237887),
            "task vector": (0.13720328, 0.069748407),
        },
        {
            "chunk vectors": (0.024414461, 0.0016543161),
            "layer 1.weight": (0.041364374, -0.014491316),
            "layer 1.bias": (0.015471113, -0.0070925173),
            "layer 2.weight": (0.061298044, 0.0059369756),
            "layer 2.bias": (0.027576822, 0.00758765),
            "task vector": (0.0086661728, 0.0052861722),
        },
    ),
]
"""Task loss, gradients including the regulariser's, and changes."""


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(
    ("optimiser", "steps", "tolerance"),
    [
        (OptimiserSettings(kind="sgd", lr=0.1, momentum=0.9), SGD, 1e-5),
        (OptimiserSettings(kind="adam", lr=0.01), ADAM, 5e-4),
    ],
    ids=["sgd", "adam"],
)
def test_two_steps_on_the_third_task_are_the_official_ones(
    optimiser: OptimiserSettings, steps: list[OfficialStep], tolerance: float
) -> None:
    settings = HyperNetSettings(
        target=MlpTargetSettings(hidden=(5,)),
        hypernetwork=HypernetworkSettings(chunk=20, task_vector=4, chunk_vector=3, hidden=(6,)),
        beta=0.5,
        learning=HyperLearningSettings(
            plan=Plan(epochs=1, batch=4, schedule=Schedule(kind="constant")),
            optimiser=optimiser,
        ),
    )
    method = HyperNet(ResNet18Settings(), settings, (3, 4, 4))
    method.open_task(LearnedTask("one", ("a", "b")))
    method.open_task(LearnedTask("two", ("c", "d")))
    fill(list(method.hypernetwork.parameters()), 0, scale=0.7)
    fill(list(method.task_vectors), 20)

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        fill(parameters[-1:], 22)  # the new task's vector

    recorder = StepRecorder(start)
    method.learn(fixed_task(8, 3, 4, ("e", "f")), recorder)
    assert len(recorder.recorded) == len(steps)
    for step, (loss, gradients, changes) in zip(recorder.recorded, steps, strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert differing(step.gradients, gradients, tolerance) == []
        assert differing(step.changes, changes, tolerance) == []
