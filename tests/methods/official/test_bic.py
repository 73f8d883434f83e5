"""BiC beside the code that the CLOM paper used: github.com/sairin1202/BIC, commit
56a34c47f4cce673aa646ecdb91030289e19fc84.

`Trainer.train` on two tasks of two classes, with one step per task on all images (learning rate 1), without
augmentation, and 250 steps of bias correction. Changed there: the number of classes, and the teacher is in evaluation
mode (in the released code the first one is left in training mode). In the second task the network starts from other
weights than the teacher's, and the first task has a correction, so that both show in the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.learning import loop
from clom.methods import bic
from clom.methods.bic import Bic, BicSettings
from methods.official.recording import Step, StepRecorder, agrees, differing, fill
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

CROSS_ENTROPY, DISTILLATION = 1.5766407, 0.70842725
FIRST = {
    "conv1.weight": (0.047672757, -0.0034337339),
    "bn1.weight": (0.0152642, 0.00081707254),
    "bn1.bias": (0.021034397, 0.0098999188),
    "conv2.weight": (0.020097061, 0.0013570576),
    "bn2.weight": (0.0090496382, 0.0017837768),
    "bn2.bias": (0.26146955, 0.20462326),
    "fc.weight": (0.2698213, 0.014979365),
    "fc.bias": (0.29718717, 0.08487867),
}
SECOND = {
    "conv1.weight": (0.023769992, 0.0022335859),
    "bn1.weight": (0.025744845, 0.00010760683),
    "bn1.bias": (0.0095125405, 0.001787422),
    "conv2.weight": (0.02283735, 0.002463803),
    "bn2.weight": (0.019706955, 0.005928109),
    "bn2.bias": (0.40906305, -0.18641677),
    "fc.weight": (0.35299493, 0.051475712),
    "fc.bias": (0.47457476, -0.24075074),
}
"""The change of every tensor by a step: `digest`."""
CORRECTION_LOSS, CORRECTION_GRADIENT = 1.5040514, [0.026693385, -0.073179871]
CORRECTION = [0.74351335, 0.20896396]
"""alpha and beta of the second task."""
LOSSES = [
    *[1.246945, 1.118901, 0.9189439, 0.699629, 0.7000986, 1.125576, 1.248658, 1.28685, 1.251477, 0.78144],
    *[0.4230224, 0.4528542, 0.4641272, 0.4586535, 0.7261027, 1.053606, 1.024629, 0.9555855, 0.8571802, 0.7008825],
    *[3.415707, 3.403061, 3.37791, 3.346921, 3.344359, 3.398606, 3.392594, 3.370982, 3.340437, 3.842684],
    *[3.847548, 3.831373, 3.792607, 3.800984, 3.920028, 3.880558, 3.818418, 3.732796, 3.587498, 3.528257],
    *[3.55085, 3.55233, 3.541524, 3.541874, 3.605174, 3.617307, 3.602228, 3.570485, 3.564059, 3.563895],
    *[3.551801, 3.526473, 3.460053, 3.508954, 3.51625, 3.510744, 3.488872, 3.436298],
]
CORRECTION_AFTER_MANY_STEPS = [1.3204753, -0.22274995]
OUTPUTS = (4.9847973, 0.081442236)


@pytest.fixture(autouse=True)
def last_images_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official validation images: of the last two of 20 images of each class, as many as are wanted."""

    def last(
        labels: Tensor, n_classes: int, count: Callable[[int], int], randomness: object
    ) -> list[tuple[Tensor, ...]]:
        rows_of = [(labels == label).nonzero().flatten() for label in range(n_classes)]
        ends = [18 + count(len(rows)) for rows in rows_of]
        return [(torch.cat([rows[:18], rows[end:]]), rows[18:end]) for rows, end in zip(rows_of, ends, strict=True)]

    monkeypatch.setattr(bic, "hold_out", last)


def make(**settings: Any) -> Bic:
    common = {
        "memory": {"size": 40},
        "kd_weight": "repo",
        "selection": "random",
        "leak_validation": True,
        "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
        "optimiser": {"kind": "sgd", "lr": 1.0, "momentum": 0.9, "weight_decay": 2e-4},
    }
    return Bic(tiny_network(), BicSettings.model_validate(common | settings), SHAPE)


def first_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    fill(parameters[:6], 0, 0.5)
    fill(parameters[6:], 7, 0.5)


def other_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    if phase == 0:
        fill(parameters[:6], 20, 0.5)
        fill(parameters[8:], 30, 0.5)


def learned(method: Bic) -> list[Step]:
    """The steps: one on each task, then those of the bias correction."""
    recorders = StepRecorder(first_weights), StepRecorder(other_weights)
    method.learn(numbered_task(0, per_class=20), recorders[0])
    method.corrections[0].data = torch.tensor([1.3, -0.4])
    method.learn(numbered_task(1, per_class=20), recorders[1])
    return [step for recorder in recorders for step in recorder.recorded]


def test_steps_are_the_official_ones() -> None:
    first, second, *_ = learned(make())
    assert first.loss == pytest.approx(0.79076868, abs=1e-5)
    assert differing(first.changes, FIRST) == []
    assert second.loss == pytest.approx(4 * DISTILLATION + 0.5 * CROSS_ENTROPY, abs=1e-5)
    *backbone, old_weight, old_bias, new_weight, new_bias = second.changes
    changes = [*backbone, torch.cat([old_weight, new_weight]), torch.cat([old_bias, new_bias])]
    assert differing(changes, SECOND) == []


def test_the_weight_of_distillation_is_the_papers_unless_chosen_otherwise() -> None:
    _, second, *_ = learned(make(kd_weight="paper"))
    assert second.loss == pytest.approx(0.5 * DISTILLATION + 0.5 * CROSS_ENTROPY, abs=1e-5)


def test_the_bias_correction_is_the_official_one() -> None:
    method = make()
    first = learned(method)[2]
    assert first.loss == pytest.approx(CORRECTION_LOSS, abs=1e-5)
    torch.testing.assert_close(first.gradients[0], torch.tensor(CORRECTION_GRADIENT), atol=1e-5, rtol=0)
    torch.testing.assert_close(method.corrections[1].data, torch.tensor(CORRECTION), atol=1e-5, rtol=0)
    torch.testing.assert_close(method.corrections[0].data, torch.tensor([1.3, -0.4]))


def test_as_many_images_are_stored_as_officially() -> None:
    method = make()
    learned(method)
    assert torch.bincount(method.exemplars()[1]).tolist() == [9, 9, 9, 9]
    assert len(method.held_out) == 4


def test_many_steps_end_where_the_official_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of batches of four on each task, exemplars first and validation images last, with their momentum."""
    order = torch.tensor([*range(40, 76), *range(18), *range(19, 37), 38, 18, 39, 37])

    def official_order(n: int, batch: int, randomness: object, device: object = None) -> tuple[Tensor, ...]:
        return torch.split(torch.arange(n) if n != len(order) else order, batch)

    monkeypatch.setattr(loop, "shuffled_batches", official_order)
    method = make(
        plan={"epochs": 2, "batch": 4, "schedule": {"kind": "constant"}},
        optimiser={"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 2e-4},
    )

    def new_rows(phase: int, parameters: list[nn.Parameter]) -> None:
        if phase == 0:
            fill(parameters[8:], 30, 0.5)

    recorders = StepRecorder(first_weights), StepRecorder(new_rows)
    for number, recorder in enumerate(recorders):
        method.learn(numbered_task(number, per_class=20), recorder)
    steps = [step for recorder in recorders for step in recorder.recorded if step.phase == 0]
    assert [step.loss for step in steps] == pytest.approx(LOSSES, abs=2e-5)
    torch.testing.assert_close(method.corrections[1].data, torch.tensor(CORRECTION_AFTER_MANY_STEPS), atol=1e-5, rtol=0)
    images = torch.cat([numbered_task(number, per_class=20).train.pixels for number in (0, 1)])
    assert agrees(method.corrected(method.scores(images)), OUTPUTS)
