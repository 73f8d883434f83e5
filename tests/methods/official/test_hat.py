"""HAT beside the official code: github.com/joansj/hat, commit 6fd0b9d98e089bec1f9da6cc20550916ce196829.

Two steps on the second task, at s = 1/400 and s = 200, by `Appr.train_epoch` with the two-layer network of `mlp_hat`
without dropout. The learning rates are chosen such that the changes of the weights are large enough to be compared and
those of the embeddings small enough: where a gate saturates, the official gradient vanishes in float32, ours does not.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import clom
from clom.learning.learners.cross_entropy import CrossEntropySettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.hat import Hat, HatSettings
from clom.nets.networks.kinds import read_net_settings
from methods.official.recording import Step, StepRecorder, differing, fill, fixed_task, in_order, two_layers

__all__ = ["in_order"]

OFFICIAL = [
    (
        1.0810192,
        {
            "fc1.weight": (0.054384733, 0.0017799642),
            "fc1.bias": (0.013667895, -0.0046214474),
            "fc2.weight": (0.05189505, -0.013113933),
            "fc2.bias": (0.034562734, 0.0140344),
            "last.weight": (0.024619061, 0.0013480289),
            "last.bias": (0.060648008, 0.017344227),
            "efc1": (0.0026631583, -0.0014819828),
            "efc2": (0.0026182912, 0.00029288486),
        },
    ),
    (
        0.99553525,
        {
            "fc1.weight": (0.046171047, -0.0030974447),
            "fc1.bias": (0.011332461, -0.0046843164),
            "fc2.weight": (0.046717725, 0.0071032215),
            "fc2.bias": (0.0039291978, 0.00064860555),
            "last.weight": (0.025458461, 0.0020636357),
            "last.bias": (0.035647088, 0.010194419),
            "efc1": (0.002449222, -0.0013745615),
            "efc2": (0.0025547957, 0.00041061193),
        },
    ),
]
"""Loss, and the change of every tensor in this order: `digest`."""


def hat_steps() -> list[Step]:
    clom.register_network("two-layers")(two_layers)
    settings = HatSettings(
        calibration="none",
        attention=HardAttentionSettings(s_max=400, sparsity_first=0.75, sparsity_rest=0.75),
        learning=CrossEntropySettings(
            plan=Plan(epochs=1, batch=4, schedule=Schedule(kind="constant")),
            optimiser=OptimiserSettings(kind="sgd", lr=1.0),
            gates_optimiser=OptimiserSettings(kind="sgd", lr=1e-4),
        ),
    )
    method = Hat(read_net_settings({"kind": "two-layers"}), settings, (3, 4, 4))
    method.open_task(LearnedTask("first", ("a", "b")))
    protection = method.protection
    assert isinstance(protection, HardAttention)
    fill(protection.net.shared_parameters(), 0, scale=0.3)
    fill(protection.mask_parameters(0), 6)

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        fill(parameters[4:6], 4, scale=0.5)  # the new head
        fill(parameters[6:], 8, scale=0.004)  # the embeddings of the new task

    recorder = StepRecorder(start)
    method.learn(fixed_task(8, 3, 4), recorder)
    return recorder.recorded


@pytest.mark.usefixtures("in_order")
@pytest.mark.filterwarnings("ignore:Task 'second' closed every unit")
def test_two_steps_on_the_second_task_are_the_official_ones() -> None:
    steps = hat_steps()
    assert len(steps) == len(OFFICIAL)
    for step, (loss, changes) in zip(steps, OFFICIAL, strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert differing(step.changes, changes) == []


@pytest.mark.usefixtures("in_order")
@pytest.mark.filterwarnings("ignore:Task 'second' closed every unit")
def test_weights_between_used_units_do_not_change() -> None:
    """As in the official `mask_back`: of the first layer only units 0 and 5 are free."""
    first_layer = hat_steps()[0].changes[0]
    assert first_layer.abs().sum(1).nonzero().flatten().tolist() == [0, 5]
    assert torch.equal(first_layer[1:5], torch.zeros(4, 48))
