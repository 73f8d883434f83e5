"""Estimate an experiment's duration on this machine, extrapolated from a few timed training steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

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

_LARGEST_STEP = 3e10
"""Multiply-adds of a timed step, about a second on one core. The batch must not depend on a first measurement: on a
busy machine threads wait for each other, which takes a small batch as long as a large one."""
_STEPS, _MOST_STEPS = 4, 100
_SECONDS = 1.0  # of all timed steps: enough to average over what other programs do


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
    """Time some CLOM training steps on blank images, as many as it takes to average over the load of the machine."""
    device, n_images = device or torch.device("cpu"), timed_images(config, image_shape[-1])
    rates, taken = _measure(config, image_shape, n_images, device, _STEPS)
    steps = min(_MOST_STEPS, math.ceil(_SECONDS / taken))
    return _measure(config, image_shape, n_images, device, steps)[0] if steps > _STEPS else rates


def timed_images(config: RunConfig, image_size: int) -> int:
    """Images of a timed step: a batch of the run, or as many of it as a step of limited size has."""
    learning = ClomSettings.model_validate(config.settings).learning
    for_each = 3 * 2 * learning.rotations * _multiply_adds_per_image(config.net, image_size)
    return max(1, min(learning.plan.batch, int(_LARGEST_STEP / for_each)))


def _measure(
    config: RunConfig, shape: Sequence[int], n_images: int, device: torch.device, steps: int
) -> tuple[Rates, float]:
    """The rates, and the seconds of a training step."""
    settings = _shortened(ClomSettings.model_validate(config.settings), n_images, steps)
    method = Clom(config.net, settings, shape).to(device)
    method.open_task(LearnedTask("timing", ("a",)))
    images = Images(torch.zeros(n_images, *shape, dtype=torch.uint8), torch.zeros(n_images, dtype=torch.int64))
    task = Task("timing", ("a",), images, images).to(device)
    clock = _Clock(torch.get_num_threads() if device.type == "cpu" else None)
    context = TrainingContext(clock, seconds_between_reports=0.0)  # each report synchronises the device
    # Not `method.learn`: its once-per-task work would be counted for every step.
    method.learner.learn(method.protection, 0, task, 0, context)
    for _ in range(steps + 1):
        method.block(images.pixels, 0)
        clock.finished("answers")
    views, head = settings.learning.rotations * n_images, settings.learning.head
    per_step = head.views if isinstance(head, SgdHeadSettings) else 1
    seconds = {phase: clock.seconds(phase) for phase in ("features", "head", "answers")}
    rates = Rates(2 * views / seconds["features"], per_step * views / seconds["head"], views / seconds["answers"])
    return rates, seconds["features"]


def _shortened(settings: ClomSettings, batch: int, steps: int) -> ClomSettings:
    """The same settings with only a few steps."""
    learning: ContrastiveSettings = settings.learning
    plan = Plan(epochs=steps, batch=batch)
    sgd = isinstance(learning.head, SgdHeadSettings)
    head = learning.head.model_copy(update={"plan": plan} if sgd else {"views": steps, "iterations": 1})
    return settings.model_copy(update={"learning": learning.model_copy(update={"plan": plan, "head": head})})


class _Clock:
    """Records when each step finished, from the progress reports of the training loop.

    Wall time is that of other programs, too: a step of ten milliseconds may take a hundred if one of its threads has to
    wait. So steps are measured in processor time, and all of them together tell how much longer wall time is.
    """

    def __init__(self, threads: int | None) -> None:
        """`threads` share the processor time; None for an accelerator, where only wall time counts."""
        self._threads = threads
        self._finished: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, progress: Progress) -> None:
        self.finished(progress.phase)

    def finished(self, phase: str) -> None:
        now = time.perf_counter()
        own = now if self._threads is None else time.process_time() / self._threads
        self._finished.setdefault(phase, []).append((now, own))

    def seconds(self, phase: str) -> float:
        """The seconds of a typical step at the machine's load."""
        typical = median(after[1] - before[1] for before, after in pairwise(self._finished[phase]))
        steps = [(times[0], times[-1]) for times in self._finished.values()]
        wall, own = (sum(last[which] - first[which] for first, last in steps) for which in (0, 1))
        return max(1e-9, typical) * max(1.0, wall / max(own, 1e-9))
