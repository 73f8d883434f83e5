"""MUC beside the official code: github.com/liuyudut/MUC, commit 773d4e02a976d84e1eab1ec1a1bb373fcadb5f93.

A step of stage 1 and one of stage 3 of `cifar100_MUC_LwF.py` on the third task, with a network of two linear layers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import clom
from clom.data.images import to_unit
from clom.data.stream import Task
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.schedule import Schedule
from clom.methods import muc
from clom.methods.families.base import LearnedTask
from clom.methods.muc import Muc, MucSettings, SideTraining
from clom.nets.networks.kinds import read_net_settings
from methods.official.recording import StepRecorder, differing, fill, fixed_pixels, fixed_task, in_order, two_layers

__all__ = ["in_order"]

STAGE_ONE = (
    1.9130392,
    {
        "fc1.weight": (0.56286517, -0.01590403),
        "fc1.bias": (0.15628029, 0.059090434),
        "fc2.weight": (0.25518422, 0.10596663),
        "fc2.bias": (0.22423304, 0.0024221278),
        "main 0.weight": (0.10251904, -0.0229917),
        "main 0.bias": (0.10054954, -0.1002271),
        "main 1.weight": (0.097761836, 0.024960747),
        "main 1.bias": (0.096788302, 0.083846639),
        "main 2.weight": (0.08691564, 0.0067617779),
        "main 2.bias": (0.06347562, -0.018460275),
        "side 1.weight": (0.06588647, 0.00035651875),
        "side 1.bias": (0.065474381, -0.030325391),
    },
)
"""Loss and changes: of the network, the main head's parts, and the side classifiers of the last task."""
STAGE_THREE = (
    1.4835165,
    {
        "side 2.weight": (0.23463484, 0.0056286283),
        "side 2.bias": (0.34490442, -0.053332),
    },
)
"""Loss and changes: of the new side classifiers."""


@pytest.mark.usefixtures("in_order")
def test_steps_on_the_third_task_are_the_official_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clom.register_network("two-layers")(two_layers)
    plan = Plan(epochs=1, batch=8, schedule=Schedule(kind="constant"))
    sgd = OptimiserSettings(kind="sgd", lr=1.0, momentum=0.9, weight_decay=5e-4)
    settings = MucSettings(plan=plan, optimiser=sgd, side_training=SideTraining(plan=plan, optimiser=sgd))
    method = Muc(read_net_settings({"kind": "two-layers"}), settings, (3, 4, 4))

    def auxiliary_images(name: str, task: Task, randomness: torch.Generator, folder: Path | None) -> muc.Draw:
        return lambda pixels: to_unit(fixed_pixels(len(pixels), 3, 4, first=5000))

    monkeypatch.setattr(muc, "auxiliary_images", auxiliary_images)
    method.open_task(LearnedTask("one", ("a", "b")))
    method.open_task(LearnedTask("two", ("c", "d")))

    def fill_all(first: int) -> None:
        """The teacher's weights, and those that the student starts from."""
        fill(list(method.backbone.parameters()), first, scale=0.4)
        fill(list(method.head.parameters()), first + 4)
        fill(list(method.side.parameters()), first + 34)

    fill_all(0)
    recorder = StepRecorder(lambda phase, parameters: fill_all(10))
    method.learn(fixed_task(8, 3, 4, ("e", "f")), recorder)
    for step, (loss, changes) in zip(recorder.recorded, (STAGE_ONE, STAGE_THREE), strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert differing(step.changes, changes) == []
