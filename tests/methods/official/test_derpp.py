"""DER++ beside the authors' code: github.com/aimagelab/mammoth, commit e75a491c69fd729edeb01431afb753d9157d9a81.

`Derpp.meta_observe` on one batch of each of two tasks of two classes (learning rate 1), without augmentation, with
outputs for all four classes from the start, twelve slots and fixed draws of the reservoir. In the second task the
network starts from other weights, so that the stored logits matter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clom.methods import derpp
from clom.methods.derpp import Derpp, DerppSettings
from methods.official.recording import Step, StepRecorder, agrees, differing, fill, in_order
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

__all__ = ["in_order"]

CROSS_ENTROPY, STORED_LOGITS, STORED_LABELS = 1.9054482, 0.37760183, 1.0041091
FIRST = {
    "conv1.weight": (0.032565499, -0.0071459331),
    "bn1.weight": (0.017543257, -0.0072224627),
    "bn1.bias": (0.006489317, 0.0025448722),
    "conv2.weight": (0.048924269, 0.0043025491),
    "bn2.weight": (0.055406636, -0.019757895),
    "bn2.bias": (0.45958495, -0.19071127),
    "fc.weight": (0.39214838, 0.01810577),
    "fc.bias": (0.44407774, 0.4099741),
}
SECOND = {
    "conv1.weight": (0.077131629, 0.013300965),
    "bn1.weight": (0.080458889, -0.011061594),
    "bn1.bias": (0.032531231, -0.0055145571),
    "conv2.weight": (0.063041625, 0.0014772425),
    "bn2.weight": (0.054609328, 0.0089844319),
    "bn2.bias": (0.90733485, -0.73343606),
    "fc.weight": (0.52893828, 0.086501239),
    "fc.bias": (0.69401035, -0.63706766),
}
"""The change of every tensor by a step: `digest`."""
RESERVOIR = [38, 1, 2, 3, 12, 15, 18, 21, 24, 27, 30, 33]
"""The stored images, numbered over both tasks."""
LOGITS = (5.2962047, 0.41652781)
LOSSES = [
    *[1.349068, 2.1251359, 2.0361724, 1.8633897, 1.8485956, 1.7834728, 1.7410305, 1.6744049],
    *[2.9108398, 2.8609612, 2.6799009, 2.6568432, 2.5402398, 2.5432906, 2.4616818, 2.4905386],
]
OUTPUTS = (10.175773, 0.24389069)
"""Of sixteen steps, and of the network after them for all images."""

pytestmark = pytest.mark.usefixtures("in_order", "fixed_draws")


@pytest.fixture
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derpp, "uniform", lambda randomness: lambda bound: bound * bound // 3 % bound)


def make(**settings: Any) -> Derpp:
    common = {
        "n_classes": 4,
        "memory": {"size": 12},
        "alpha": 0.5,
        "beta": 0.7,
        "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
        "optimiser": {"kind": "sgd", "lr": 1.0},
    }
    return Derpp(tiny_network(), DerppSettings.model_validate(common | settings), SHAPE)


def learned(method: Derpp) -> list[Step]:
    steps = list[Step]()
    for number in (0, 1):

        def weights(phase: int, parameters: list[nn.Parameter], first: int = 20 * number) -> None:
            fill(parameters, first, 0.5)

        recorder = StepRecorder(weights)
        method.learn(numbered_task(number), recorder)
        steps += recorder.recorded
    return steps


def test_steps_are_the_official_ones() -> None:
    first, second = learned(make())
    assert first.loss == pytest.approx(1.3016977, abs=1e-5)
    assert differing(first.changes, FIRST) == []
    assert second.loss == pytest.approx(CROSS_ENTROPY + 0.5 * STORED_LOGITS + 0.7 * STORED_LABELS, abs=1e-5)
    assert differing(second.changes, SECOND) == []


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"alpha": 0.0, "beta": 0.0}, CROSS_ENTROPY),
        ({"alpha": 1.0, "beta": 0.0}, CROSS_ENTROPY + STORED_LOGITS),
        ({"alpha": 0.0, "beta": 1.0}, CROSS_ENTROPY + STORED_LABELS),
    ],
)
def test_terms_are_the_official_ones(weights: dict[str, float], expected: float) -> None:
    assert learned(make(**weights))[1].loss == pytest.approx(expected, abs=1e-5)


def test_the_reservoir_is_the_official_one() -> None:
    method = make()
    learned(method)
    images = torch.cat([numbered_task(number).train.pixels for number in (0, 1)])
    assert torch.equal(method.reservoir.pixels, images[RESERVOIR])
    assert method.reservoir.labels.tolist() == [2, 1, 0, 1, 0, 1, 0, 3, 2, 3, 2, 3]
    assert agrees(method.reservoir.outputs, LOGITS)


def test_sixteen_steps_end_where_the_official_ones_do() -> None:
    """Two epochs of four batches on each task: reservoir, normalisation statistics and weights stay together."""
    method = make(
        plan={"epochs": 2, "batch": 5, "schedule": {"kind": "constant"}}, optimiser={"kind": "sgd", "lr": 0.1}
    )
    fill(list(method.parameters()), 0, 0.5)
    losses = list[float]()
    for number in (0, 1):
        recorder = StepRecorder(lambda phase, parameters: None)
        method.learn(numbered_task(number), recorder)
        losses += [step.loss for step in recorder.recorded]
    assert losses == pytest.approx(LOSSES, abs=1e-5)
    images = torch.cat([numbered_task(number).train.pixels for number in (0, 1)])
    assert agrees(method.scores(images), OUTPUTS)
