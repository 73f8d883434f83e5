"""Estimate an experiment's duration on this machine, extrapolated from a few timed training steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from clom.data.images import Images
from clom.data.stream import Task
from clom.experiments.catalogue import size_of
from clom.experiments.config import RunConfig
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings, SgdHeadSettings
from clom.learning.loop import Plan
from clom.learning.progress import Progress
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import LearnedTask
from clom.nets import NetSettings
from clom.nets.plain import Backbone

_SIZES = (1, 4, 32)  # images per step: smallest first, which is enough for the widest networks on a small machine
_LONG_ENOUGH = 0.25  # seconds per step: do not try larger batches beyond this
_STEPS = 3


@dataclass(frozen=True)
class Rates:
    """Views per second in each phase; `answers` is inference, where each rotation counts as a view."""

    features: float
    head: float
    answers: float


@dataclass(frozen=True)
class Work:
    """Size of an experiment: image shape, number of training and test images, number of tasks."""

    image_shape: tuple[int, int, int]
    trained: float
    tested: int
    n_tasks: int


def work_of(config: RunConfig, folder: Path | None = None) -> Work:
    """From the size declared in the experiment's file, or else from its images, read from `folder`."""
    size, data = size_of(config.experiment), config.data
    if size is None:
        stream = data.stream(folder, config.seed)
        trained = sum(len(task.train) for task in stream)
        return Work(stream.image_shape, trained, sum(map(len, stream.tests)), len(stream))
    available = min(size.train_per_class, data.train_per_class or size.train_per_class)
    return Work(
        config.image_shape(folder),
        (1 - data.validation) * available * size.classes,
        min(size.test_per_class, data.test_per_class or size.test_per_class) * size.classes,
        size.classes // (data.classes_per_task or size.classes),
    )


def estimate_seconds(config: RunConfig, work: Work, rates: Rates) -> float:
    """Seconds to learn and evaluate all tasks with CLOM, excluding data loading, head solvers, calibration and I/O."""
    learning = ClomSettings.model_validate(config.settings).learning
    passes = _head_passes(learning.head)
    seconds: float = learning.rotations * (
        2 * work.trained * learning.plan.epochs / rates.features
        + passes * work.trained / rates.head
        + work.n_tasks * work.tested / rates.answers
    )
    return seconds


def multiply_adds(config: RunConfig, work: Work) -> float:
    """Multiply-adds to learn and evaluate all tasks with CLOM; a backward pass counts as two forward passes."""
    learning = ClomSettings.model_validate(config.settings).learning
    passes = _head_passes(learning.head)
    forward_passes: float = learning.rotations * (
        3 * 2 * work.trained * learning.plan.epochs + passes * work.trained + work.n_tasks * work.tested
    )
    return forward_passes * _multiply_adds_per_image(config.net, work.image_shape[-1])


def _head_passes(head: HeadSettings | SgdHeadSettings) -> int:
    """How often step 2 sees an image in all its rotations."""
    return head.views * (head.plan.epochs if isinstance(head, SgdHeadSettings) else 1)


def _multiply_adds_per_image(net: NetSettings, image_size: int) -> int:
    backbone = Backbone(net, image_size).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(torch.zeros(1, 3, image_size, image_size))
    operations: int = counter.get_total_flops()
    return operations // 2


def measure(config: RunConfig, image_shape: Sequence[int], device: torch.device | None = None) -> Rates:
    """Time a few CLOM training steps on blank images, increasing the batch until a step is long enough to measure."""
    for n_images in _SIZES:
        rates, longest = _measure(config, image_shape, n_images, device or torch.device("cpu"))
        if longest > _LONG_ENOUGH:
            break
    return rates


def _measure(config: RunConfig, shape: Sequence[int], n_images: int, device: torch.device) -> tuple[Rates, float]:
    """The rates and the seconds per training step."""
    settings = _shortened(ClomSettings.model_validate(config.settings), n_images)
    method = Clom(config.net, settings, shape).to(device)
    method.open_task(LearnedTask("timing", ("a",)))
    images = Images(torch.zeros(n_images, *shape, dtype=torch.uint8), torch.zeros(n_images, dtype=torch.int64))
    task = Task("timing", ("a",), images, images).to(device)
    clock = _Clock()
    context = TrainingContext(clock, seconds_between_reports=0.0)  # each report synchronises the device
    # Not `method.learn`: its once-per-task work would be counted for every step.
    method.learner.learn(method.protection, 0, task, 0, context)
    inference_seconds = []
    for _ in range(_STEPS):
        started = time.perf_counter()
        method.block(images.pixels, 0)
        inference_seconds.append(time.perf_counter() - started)
    views, head = settings.learning.rotations * n_images, settings.learning.head
    per_step = head.views if isinstance(head, SgdHeadSettings) else 1
    features = clock.seconds("features")
    return Rates(
        2 * views / features, per_step * views / clock.seconds("head"), views / min(inference_seconds)
    ), features


def _shortened(settings: ClomSettings, batch: int) -> ClomSettings:
    """The same settings with only a few steps."""
    learning: ContrastiveSettings = settings.learning
    plan = Plan(epochs=_STEPS, batch=batch)
    sgd = isinstance(learning.head, SgdHeadSettings)
    head = learning.head.model_copy(update={"plan": plan} if sgd else {"views": _STEPS, "iterations": 1})
    return settings.model_copy(update={"learning": learning.model_copy(update={"plan": plan, "head": head})})


class _Clock:
    """Records when each step finished, from the progress reports of the training loop."""

    def __init__(self) -> None:
        self._finished: dict[str, list[float]] = {}

    def __call__(self, progress: Progress) -> None:
        self._finished.setdefault(progress.phase, []).append(time.perf_counter())

    def seconds(self, phase: str) -> float:
        """The shortest step of a phase: others include warm-up or interference by other processes."""
        times = self._finished[phase]
        return min(after - before for before, after in pairwise(times))
