"""Mnemonics beside Liu et al.'s code.

github.com/yaoyao-liu/class-incremental-learning, commit 6a92ab08170abaaaf791d91e00ba195a5c38672f,
mnemonics-training/1_train: `Trainer.train` of trainer/mnemonics.py on two tasks of two classes, with one step of the
network (learning rate 0.1) and one of the exemplars (learning rate 10) per task on all images, without augmentation.
From the second task on it trains a factor per kernel. Changed there: the number of features and pixels, exemplars are
flipped instead of swapping their colour channels, and pixels are normalised with 0.5 and 0.2 for all channels. The
released code stores exemplars as bytes, rounded down; so does this test between the tasks.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clom.methods.mnemonics import Mnemonics, MnemonicsSettings
from methods.official.recording import Step, StepRecorder, agrees, differing, fill
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

CROSS_ENTROPY, DISTILLATION = 2.7484658, 0.40338823
SECOND = {
    "conv1.mtl_weight": (0.02665421, -0.011698872),
    "bn1.weight": (0.024441935, -0.0047546631),
    "bn1.bias": (0.017714174, 0.015761692),
    "layer2.mtl_weight": (0.02755426, 0.0029181397),
    "layer3.weight": (0.032956814, 0.0034069349),
    "layer3.bias": (0.50261661, -0.33185317),
    "fc.sigma": (0.03886652, -0.03886652),
    "fc.fc2.weight": (0.21554339, -0.053741632),
}
"""The change of every tensor by the step on the second task: `digest`."""
EXEMPLARS = [
    (0.69120079, (0.0029346795, 4.0664439e-05), (0.23307975, 0.01544767)),
    (1.3840151, (0.001994676, -0.00014279181), (0.16276258, 0.003145055)),
]
"""Of each task's exemplars: the loss, the gradient and the change."""
MEANS = [
    [-0.3315173, 0.0934869, 0.3403336, 0.6667354, 0.5602652, 0.0842397],
    [-0.3016988, 0.1202326, 0.5096155, 0.6410283, 0.4583399, 0.1175637],
    [-0.3909663, 0.1247549, 0.4532376, 0.5959664, 0.5164059, 0.0656222],
    [-0.2652924, 0.0891802, 0.5135497, 0.5939292, 0.5512164, 0.0366339],
]


def make() -> Mnemonics:
    settings = MnemonicsSettings.model_validate(
        {
            "memory": {"size": 8, "rounding": "ceil"},
            "herding": "rank",
            "flip_means": True,
            "weight_transfer": True,
            "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
            "optimiser": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
            "exemplars": {
                "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
                "optimiser": {"kind": "sgd", "lr": 10.0, "momentum": 0.9, "weight_decay": 5e-4},
            },
        }
    )
    return Mnemonics(tiny_network(), settings, SHAPE)


def first_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    if phase == 0:
        fill(parameters[:6], 0, 0.5)
        parameters[6].data.fill_(5.0)
        fill(parameters[7:], 7, 0.5)


def learned() -> tuple[Mnemonics, list[Step]]:
    """After two tasks, with the steps of network, exemplars, network, exemplars."""
    method = make()
    recorders = [StepRecorder(first_weights), StepRecorder(lambda phase, parameters: other_weights(method, phase))]
    method.learn(numbered_task(0), recorders[0])
    store_as_bytes(method)
    method.learn(numbered_task(1), recorders[1])
    return method, [step for recorder in recorders for step in recorder.recorded]


def store_as_bytes(method: Mnemonics) -> None:
    method.memory.pixels = (255 * method.memory.pixels).floor() / 255


def other_weights(method: Mnemonics, phase: int) -> None:
    """Factors, and weights of batch norm, other than the teacher's, in the order of the layers."""
    if phase == 0:
        trained = dict(method.backbone.named_parameters())
        kernels = [f"net.layers.{layer}.parametrizations.weight.0.factors" for layer in (0, 3)]
        norms = [[f"net.layers.{layer}.{name}" for name in ("weight", "bias")] for layer in (1, 4)]
        layers = [kernels[0], *norms[0], kernels[1], *norms[1]]
        fill([trained[name] for name in layers], 20, 0.5)


def test_the_step_on_the_second_task_is_the_official_one() -> None:
    _, steps = learned()
    assert steps[2].loss == pytest.approx(CROSS_ENTROPY + DISTILLATION, abs=1e-5)
    assert differing(steps[2].changes, SECOND) == []


@pytest.mark.parametrize("task", [0, 1])
def test_the_step_of_the_exemplars_is_the_official_one(task: int) -> None:
    step, (loss, gradient, change) = learned()[1][2 * task + 1], EXEMPLARS[task]
    assert step.loss == pytest.approx(loss, abs=1e-5)
    ((own_gradient,), (own_change,)) = step.gradients, step.changes
    # A thousand times, because small gradients are compared only up to 1e-6.
    assert agrees(1000 * own_gradient, (1000 * gradient[0], 1000 * gradient[1]))
    assert agrees(own_change, change)


def test_class_means_are_the_official_ones() -> None:
    method, _ = learned()
    store_as_bytes(method)
    torch.testing.assert_close(method.class_means(4), torch.tensor(MEANS), atol=1e-5, rtol=0)
