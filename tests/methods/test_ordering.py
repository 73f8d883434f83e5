"""The ordering of the paper's Table 2 on digits: CIL accuracy depends on the OOD learner, not on the protection.

Four tasks, a narrow network and half the training of the hand-written recipe. The margins are less than half of those
measured here; reading the wrong rotation blocks of the head is enough to miss them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from torch import Tensor

from clom.data.formats import read_digits
from clom.data.stream import Stream, split
from clom.evaluation.metrics import Evaluation, evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import Method

NARROW: dict[str, Any] = {"net.channels": [32, 32, 64], "net.hidden": 128, "learning.plan.epochs": 40}
SPARSE = {"attention.sparsity_first": 0.25, "attention.sparsity_rest": 0.15}
FEWER_VIEWS = {"learning.head.views": 2}
OVERRIDES: dict[str, dict[str, Any]] = {
    "clom": NARROW | SPARSE | FEWER_VIEWS,
    "clom-no-ood": NARROW | SPARSE | FEWER_VIEWS,
    "clom-odin": NARROW | SPARSE,
    "hat": NARROW | SPARSE,
    "supsup": NARROW,
    "supsup-ood": NARROW | FEWER_VIEWS,
}


@cache
def stream() -> Stream:
    return split(read_digits(), [2, 2, 2, 2], train_per_class=100, test_per_class=30)


@cache
def learned(name: str) -> Method:
    config = resolve("digits-5t", name, "cpu", 0, OVERRIDES[name], by_hand=True)
    method = config.make_method(stream().image_shape)
    for task in stream():
        method.learn(task)
    return method


def evaluated(method: Method) -> Evaluation:
    book = Scorebook(stream().tests)
    book.update(method)
    return evaluate(book, method.calibrations())


@cache
def accuracy(name: str) -> Evaluation:
    return evaluated(learned(name))


@pytest.mark.parametrize(
    ("better", "worse", "margin"),
    [
        ("clom", "hat", 0.10),
        ("clom", "clom-odin", 0.10),
        ("clom", "clom-no-ood", 0.02),
        pytest.param("supsup-ood", "supsup", 0.07, marks=pytest.mark.slow),
    ],
)
def test_ood_learning_improves_cil(better: str, worse: str, margin: float) -> None:
    good, bad = accuracy(better), accuracy(worse)
    assert good.til > 0.98
    assert good.preferred.cil > bad.preferred.cil + margin
    assert good.preferred.task_detection > bad.preferred.task_detection + margin


class _WrongRotation(Clom):
    """CLOM that reads the head's block of the next rotation."""

    def _views(self, pixels: Tensor) -> Tensor:
        views = super()._views(pixels)  # [rotation * image, ...]
        return views.roll(len(pixels), 0)


def test_a_broken_rotation_head_misses_the_margins() -> None:
    method = learned("clom")
    assert isinstance(method.settings, ClomSettings)
    broken = _WrongRotation(method.net_settings, method.settings, method.image_shape, method.seed)
    for task in method.tasks:
        broken.open_task(task)
    broken.load_state_dict(method.state_dict())
    broken._fit_to_memory()  # with a calibration fitted to the broken scores
    assert evaluated(broken).preferred.cil < accuracy("hat").preferred.cil + 0.10
