"""LwF.R and iCaRL beside Liu et al.'s code, which the CLOM paper used for both.

github.com/yaoyao-liu/class-incremental-learning, commit 6a92ab08170abaaaf791d91e00ba195a5c38672f,
mnemonics-training/1_train: `Trainer.train` of trainer/baseline.py on two tasks of two classes, with one step per task
on all images (learning rate 0.1), without augmentation. Changed there: the number of features, and exemplars are
flipped instead of swapping their colour channels. In the second task the network starts from other weights than the
teacher's, so that distillation matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.methods.icarl import Icarl, IcarlSettings
from clom.methods.lwf_r import LwfR, LwfRSettings
from clom.nets.plain import CosineHead
from methods.official.recording import Step, StepRecorder, differing, fill, in_order
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

__all__ = ["in_order"]

CROSS_ENTROPY, DISTILLATION = 2.5864239, 0.38865724
FIRST = {
    "conv1.weight": (0.022797683, -0.0028085354),
    "bn1.weight": (0.0088893804, 0.0055321588),
    "bn1.bias": (0.012007928, -0.00063473347),
    "layer2.weight": (0.023986389, 0.00058389201),
    "layer3.weight": (0.054265388, -0.018327892),
    "layer3.bias": (0.099033646, 0.046063815),
    "fc.sigma": (0.0653162, -0.0653162),
    "fc.weight": (0.26595406, -0.074741938),
}
SECOND = {
    "conv1.weight": (0.038351495, 0.0073714022),
    "bn1.weight": (0.013894099, -0.0036204507),
    "bn1.bias": (0.026679728, -0.012111695),
    "layer2.weight": (0.036073201, 0.0043214482),
    "layer3.weight": (0.036547595, -0.017022033),
    "layer3.bias": (0.48354499, -0.30010396),
    "fc.sigma": (0.035311222, -0.035311222),
    "fc.fc2.weight": (0.2153543, -0.055608786),
}
"""The change of every tensor by a step: `digest`."""
STORED = [[8, 9, 1, 0], [3, 4, 0, 2], [1, 2], [0, 7]]
"""Each class's exemplars, best first, numbered within the class: four of the first task, then two of every class."""
MEANS = [
    [-0.4362774, 0.1684188, 0.4159073, 0.6369162, 0.4493954, -0.0264525],
    [-0.5272531, 0.1084292, 0.4559211, 0.5833488, 0.3969563, 0.0671794],
    [-0.4330329, 0.1699799, 0.4649985, 0.5572377, 0.5066318, 0.0132723],
    [-0.3669802, 0.1839652, 0.3961154, 0.5784377, 0.5829673, 0.0115739],
]

LOSSES = [
    *[3.3503394, 3.0183334, 2.7436323, 2.0650856, 1.9020863],
    *[0.8742609, 0.94578969, 0.85061079, 1.024183, 1.0973901],
    *[0.83553337, 0.82204213, 0.82657957, 0.8294522, 0.72750256, 2.8332982, 4.677846],
    *[0.7965859, 0.87479252, 0.96433401, 1.0139958, 0.89554739, 1.6377649, 3.0948489],
]
MEANS_AFTER_MANY_STEPS = [
    [-0.1498879, 0.3850825, 0.3220899, 0.733787, 0.3673663, 0.2282583],
    [-0.0580271, 0.299254, 0.3453, 0.7974268, 0.3834912, 0.069948],
    [-0.019579, 0.3084484, 0.3570962, 0.7584403, 0.4402865, 0.08874],
    [-0.0521841, 0.3223572, 0.3861219, 0.6767613, 0.4988197, 0.1935089],
]

COMMON = {
    "memory": {"size": 8, "rounding": "ceil"},
    "herding": "rank",
    "plan": {"epochs": 1, "batch": 1000, "schedule": {"kind": "constant"}},
    "optimiser": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
}


def lwf_r(**settings: Any) -> LwfR:
    return LwfR(tiny_network(), LwfRSettings.model_validate(COMMON | settings), SHAPE)


def icarl(**settings: Any) -> Icarl:
    return Icarl(tiny_network(), IcarlSettings.model_validate(COMMON | {"flip_means": True} | settings), SHAPE)


def first_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    fill(parameters[:6], 0, 0.5)
    parameters[6].data.fill_(5.0)
    fill(parameters[7:], 7, 0.5)


def other_weights(phase: int, parameters: list[nn.Parameter]) -> None:
    fill(parameters[:6], 20, 0.5)


def learn_two_tasks(method: LwfR) -> list[Step]:
    steps = list[Step]()
    for number, prepare in enumerate((first_weights, other_weights)):
        recorder = StepRecorder(prepare)
        method.learn(numbered_task(number), recorder)
        steps += recorder.recorded
    return steps


@pytest.mark.parametrize("make", [lwf_r, icarl])
def test_both_steps_are_the_official_ones(make: Callable[[], LwfR]) -> None:
    first, second = learn_two_tasks(make())
    assert first.loss == pytest.approx(3.2653339, abs=1e-5)
    assert differing(first.changes, FIRST) == []
    assert second.loss == pytest.approx(CROSS_ENTROPY + DISTILLATION, abs=1e-5)
    assert differing(second.changes, SECOND) == []


def test_the_terms_are_the_official_ones() -> None:
    _, second = learn_two_tasks(lwf_r(beta=0.0))
    assert second.loss == pytest.approx(CROSS_ENTROPY, abs=1e-5)


def test_old_rows_of_the_head_do_not_change() -> None:
    method = lwf_r()
    method.learn(numbered_task(0), StepRecorder(first_weights))
    assert isinstance(method.head, CosineHead)
    before = method.head.parts[0].detach().clone()
    method.learn(numbered_task(1), StepRecorder(other_weights))
    assert torch.equal(method.head.parts[0], before)


def test_exemplars_are_the_official_ones() -> None:
    method = lwf_r()
    method.learn(numbered_task(0), StepRecorder(first_weights))
    assert stored(method) == STORED[:2]
    method.learn(numbered_task(1), StepRecorder(other_weights))
    assert stored(method) == [*(rows[:2] for rows in STORED[:2]), *STORED[2:]]


def stored(method: LwfR) -> list[list[int]]:
    pixels, labels = method.exemplars()
    return [[_number(label, image) for image in pixels[labels == label]] for label in range(method.n_seen)]


def _number(label: int, image: Tensor) -> int:
    train = numbered_task(label // 2).train
    same = (train.pixels[train.labels == label % 2] == image).all(dim=(1, 2, 3))
    (number,) = same.nonzero().flatten().tolist()
    return int(number)


def test_class_means_are_the_official_ones() -> None:
    method = icarl()
    learn_two_tasks(method)
    torch.testing.assert_close(method.means, torch.tensor(MEANS), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("in_order")
def test_many_steps_end_where_the_official_ones_do() -> None:
    """Two epochs of batches of four on each task; a class's four exemplars form a batch. With their momentum."""
    method = icarl(
        plan={"epochs": 2, "batch": 4, "schedule": {"kind": "constant"}},
        optimiser={"kind": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4},
    )
    recorders = StepRecorder(first_weights), StepRecorder(lambda phase, parameters: None)
    for number, recorder in enumerate(recorders):
        method.learn(numbered_task(number), recorder)
    assert [step.loss for recorder in recorders for step in recorder.recorded] == pytest.approx(LOSSES, abs=1e-5)
    torch.testing.assert_close(method.means, torch.tensor(MEANS_AFTER_MANY_STEPS), atol=1e-5, rtol=0)
