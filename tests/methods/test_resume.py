"""Every method resumes within a task: interrupted every few steps, its result is that of an uninterrupted one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from clom.data.stream import Stream, Task
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families.base import Method
from clom.methods.registry import PAPER_METHODS
from clom.storage.checkpoints import CheckpointFolder
from clom.storage.model_file import load_model, save_model
from clom.testing.methods import check_equal

PLAN = {"epochs": 2, "batch": 8}
LARS = {"kind": "lars", "lr": 0.1, "momentum": 0.9}
BY_SGD = {"plan": PLAN, "optimiser": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
IMPATIENT = {"monitor": "accuracy", "patience": 1, "drop": 1e-3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PAPER_METHODS},
    "clom, LARS, head by SGD": (
        "clom",
        {"learning": {"head": BY_SGD, "cross_entropy": 1.0, "optimiser": LARS, "gates_optimiser": LARS}},
    ),
    "clom, growth": ("clom", {"attention": {"growth": 100}}),
    "clom, soft gates": ("clom", {"attention": {"binary": False, "s_max": 4.0}}),
    "hat, plateau": ("hat", {"learning": {"plan": {**PLAN, "epochs": 6, "plateau": IMPATIENT}}}),
    "hypernet, plateau": (
        "hypernet",
        {"learning": {"plan": {**PLAN, "plateau": {**IMPATIENT, "stop": False}}}},
    ),
    "supsup-ood, head by SGD": ("supsup-ood", {"learning": {"head": BY_SGD}}),
    "ccg, generative": ("ccg", {"rehearsal": "generative", "wgan": {"steps": 5, "width": 4, "batch": 8}}),
    "mnemonics, bilevel": (
        "mnemonics",
        {
            "exemplars": {"version": "bilevel", "inner_steps": 2, "plan": PLAN},
            "adjust_old": PLAN,
            "weight_transfer": True,
        },
    ),
    "co2l, head by SGD": ("co2l", {"head": BY_SGD, "teacher_bn": "batch"}),
    "a-rps, two candidates": ("a-rps", {"candidates": 2, "switching": {"kind": "interval", "interval": 1}}),
    "icarl, rebuffi": ("icarl", {"variant": "rebuffi"}),
    "owm, task end": ("owm", {"update": "task_end"}),
    "muc, noise": ("muc", {"ood": "noise"}),
    "derpp, full reservoir": ("derpp", {"memory": {"size": 10}}),
}
QUICK = (*PAPER_METHODS, "clom, growth", "hat, plateau", "hypernet, plateau")


class Crash(Exception):
    pass


class Fragile:
    """Raises after the given number of training steps; reports between phases do not count."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.phases: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        if math.isnan(progress.loss):
            return
        self.phases.add(progress.phase)
        self.left -= 1
        if self.left == 0:
            raise Crash


def learned_with_interruptions(
    before: Path, task: Task, folder: Path, steps: int, most: int = 200
) -> tuple[Method, int]:
    """Learn a task, interrupted every `steps` steps and resumed from the files; returns the number of attempts, too."""
    for attempt in range(1, most):
        method = load_model(before)
        try:
            return method.learn(
                task, TrainingContext(Fragile(steps), CheckpointFolder(folder, 1, "test", every=0))
            ), attempt
        except Crash:
            continue
    raise AssertionError("no progress")


def make(name: str, changes: dict[str, Any]) -> Method:
    """As in a smoke run, but with several steps per epoch in every phase and with random augmentation."""
    usual = resolve("digits-5t", name, "smoke", 3).make_method((1, 8, 8))
    settings = merged(with_several_steps(usual.settings.model_dump()), changes)
    return type(usual)(usual.net_settings, type(usual.settings).model_validate(settings), (1, 8, 8), 3)


def with_several_steps(settings: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, dict[str, Any]] = {"plan": PLAN, "augmentation": {"flip": True}}
    return {
        name: with_several_steps(value) | changes.get(name, {}) if isinstance(value, dict) else value
        for name, value in settings.items()
    }


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Groups are merged, except `head` and `switching`, which are replaced by another kind."""
    inner = {
        name: merged(settings[name], value)
        for name, value in changes.items()
        if isinstance(value, dict) and isinstance(settings.get(name), dict) and name not in ("head", "switching")
    }
    return settings | changes | inner


@pytest.mark.parametrize(
    "variant", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_interrupted_training_is_bit_identical(variant: str, tiny_stream: Stream, tmp_path: Path) -> None:
    method = make(*VARIANTS[variant]).learn(tiny_stream[0])
    save_model(tmp_path / "before", method)
    resumed, attempts = learned_with_interruptions(
        tmp_path / "before", tiny_stream[1], tmp_path / "checkpoints", steps=3
    )
    assert attempts >= 3
    check_equal(resumed, method.learn(tiny_stream[1]), tiny_stream.tests[0].pixels)
