"""OWM beside the official code: github.com/beijixiong3510/OWM, commit a5c59d7b569e3228374ce57a696647646fde6ea2.

Two steps of `OWM_CNN/owm.py` on the second of three tasks, with its network made narrow and without dropout, from
projectors that earlier inputs have shrunk. Both steps are clipped. The outputs of the two future
classes start from equal rows, which ours keeps as one.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.owm import Owm, OwmNetSettings, OwmSettings, Projector
from clom.nets import ResNet18Settings
from methods.official.recording import StepRecorder, differing, fill, fixed_task, in_order, wave

__all__ = ["in_order"]

STEPS = [
    (
        2.2166331,
        {
            "c1": (0.48493295, 0.00032100798),
            "c2": (2.2216913, 0.27160504),
            "c3": (2.0307554, -0.066544384),
            "fc1": (0.80130857, -0.0079546369),
            "fc2": (0.29765695, -0.0053689664),
            "spare": (0.066265927, 0.0012453091),
            "rows of the first task": (0.23351102, -0.0014254507),
            "rows of the second task": (0.68807983, -0.0079411679),
        },
    ),
    (
        1.2666368,
        {
            "c1": (0.43723882, 0.0011211263),
            "c2": (2.1718396, 0.17522426),
            "c3": (3.884874, 0.054396595),
            "fc1": (1.3358798, -0.01783244),
            "fc2": (0.7299761, -0.0114315),
            "spare": (0.059623581, 0.0011222),
            "rows of the first task": (0.21094362, -0.0012188904),
            "rows of the second task": (0.99960296, -0.025013349),
        },
    ),
]
"""Loss and changes."""
PROJECTORS = {
    "Pc1": (0.0029088255, 0.00016029483),
    "Pc2": (1.0859146, -0.0063596513),
    "Pc3": (3.4642924, 0.27754799),
    "P1": (1.2235187, -0.0025215276),
    "P2": (1.523926, -0.021344037),
    "P3": (1.5095139, -0.05671702),
}
"""After both steps."""


@pytest.mark.usefixtures("in_order")
def test_two_steps_on_the_second_task_are_the_official_ones() -> None:
    settings = OwmSettings(
        plan=Plan(epochs=1, batch=3, schedule=Schedule(kind="constant")),
        optimiser=OptimiserSettings(kind="sgd", lr=0.5, momentum=0.9),
        network=OwmNetSettings(channels=(4, 5, 6), hidden=(7, 7), dropout=0.0),
        clip=6.5,
        unseen=2,
    )
    method = Owm(ResNet18Settings(), settings, (3, 8, 8))
    method.open_task(LearnedTask("first", ("a", "b")))
    projectors = [projector for projector in method.projectors if isinstance(projector, Projector)]
    for number, projector in enumerate(projectors, start=10):
        size = len(projector.matrix)
        rows = wave((3, size), number).double()
        projector.matrix.copy_(torch.linalg.inv(torch.eye(size) + rows.T @ rows / 0.1))

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        fill(parameters[:5], 0, scale=0.8)
        fill(parameters[5:], 5)  # the row of future classes, those of the first task, those of the second

    recorder = StepRecorder(start)
    method.learn(fixed_task(6, 3, 8), recorder)
    assert len(recorder.recorded) == len(STEPS)
    for step, (loss, changes) in zip(recorder.recorded, STEPS, strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert differing(step.changes, changes) == []
    assert differing([projector.matrix for projector in projectors], PROJECTORS) == []
