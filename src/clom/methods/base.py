"""What every system is: something that learns one task after another and scores images for each of them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.calibration import Affine
from clom.learning.loop import Report, generator, silent
from clom.nets import NetSettings
from clom.settings import Settings

Blocks = list[Tensor]
"""One tensor `[images, classes of the task]` of scores for every learned task; high = belongs."""


@dataclass(frozen=True)
class LearnedTask:
    """What is remembered of a task besides numbers."""

    name: str
    class_names: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        return len(self.class_names)


class Method(nn.Module, ABC):
    """A continual learner. `learn` may be called for ever; nothing is announced in advance.

    A system implements `_open_task`, which grows whatever a new task needs (and is all that loading a file needs), and
    `_learn`, which trains it. All its state is in parameters and buffers, so saving and loading are the same for all.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]]
    exact_memory: bool = False
    """Whether old blocks stay bit-identical for ever, so that scores never need computing twice."""

    def __init__(self, net: NetSettings, settings: Settings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__()
        channels, height, width = image_shape
        if height != width:
            raise UserError(f"Images must be square, these are {height} x {width}. Crop or resize them first.")
        self.net_settings, self.settings = net, settings
        self.image_shape = (channels, height, width)
        self.seed = seed
        self.tasks: list[LearnedTask] = []

    def learn(self, task: Task, report: Report = silent) -> Self:
        """Learn one more task. If that fails or is interrupted, the method is as it was before."""
        self._check(task)
        before = copy.deepcopy(self)
        try:
            with seeded(self.seed, "learn", len(self.tasks)):
                self.open_task(LearnedTask(task.name, task.class_names))
                self._learn(task, report)
            self.zero_grad(set_to_none=True)  # gradients of finished tasks would be kept for ever
        except BaseException:
            self.__dict__.update(before.__dict__)
            raise
        return self

    def open_task(self, task: LearnedTask) -> None:
        """Make room for a task without learning it: the first half of `learn`, and how a stored model is rebuilt."""
        self.tasks.append(task)
        self._open_task(task)
        channels_last(self)

    @abstractmethod
    def _open_task(self, task: LearnedTask) -> None:
        """Grow for `task`, the last of `self.tasks`."""

    @abstractmethod
    def _learn(self, task: Task, report: Report) -> None:
        """Train on the last of `self.tasks`, whose room was just made."""

    @abstractmethod
    def blocks(self, pixels: Tensor) -> Blocks:
        """Raw scores of images (bytes, or numbers in [0, 1]) for every learned task."""

    def block(self, pixels: Tensor, task: int) -> Tensor:
        """The scores of one task."""
        return self.blocks(pixels)[task]

    def answers(self, pixels: Tensor) -> tuple[Blocks, Tensor]:
        """`blocks`, and by how much each task takes an image for one of its own, `[images, tasks]`; high = belongs.

        Each task's numbers have a scale of their own: compare them with those of its own held-out images. They are as
        lasting as the blocks.
        """
        blocks = self.blocks(pixels)
        best = [block.amax(1) for block in blocks]
        return blocks, torch.stack(best, 1) if best else torch.empty(len(pixels), 0)

    def belonging(self, pixels: Tensor) -> Tensor:
        """The second of `answers`."""
        return self.answers(pixels)[1]

    def calibrations(self) -> Mapping[str, Affine]:
        """Ways of making the blocks comparable, the preferred one first; they never change an answer within a task."""
        return {"none": Affine.identity(len(self.tasks))}

    def capacity(self) -> Mapping[str, Sequence[float]]:
        """Gate group -> fraction of its units in use after each task; empty for methods without gates."""
        return {}

    def n_parameters(self) -> int:
        """Numbers that inference needs."""
        return sum(p.numel() for p in self.parameters())

    @property
    def memory_bytes(self) -> int:
        """Bytes of training or validation samples kept between tasks."""
        return 0

    def _check(self, task: Task) -> None:
        shape = tuple(task.train.pixels.shape[1:])
        if shape != self.image_shape:
            raise UserError(f"Task '{task.name}' has images of shape {shape}, this model learns {self.image_shape}.")
        if task.n_classes < 1 or len(task.train) == 0:
            raise UserError(f"Task '{task.name}' has nothing to learn: {task.n_classes} classes, no images.")
        known = {name for learned in self.tasks for name in learned.class_names}
        again = known.intersection(task.class_names)
        if again:
            raise UserError(f"Task '{task.name}' brings classes that were learned before: {', '.join(sorted(again))}.")
        missing = set(range(task.n_classes)) - set(task.train.labels.tolist())
        if missing:
            names = ", ".join(task.class_names[label] for label in sorted(missing))
            raise UserError(f"Task '{task.name}' has no training images of: {names}.")


def channels_last(module: nn.Module) -> None:
    """The memory layout in which CPUs convolve 1.2 to 1.4 times faster; values do not change."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def seeded(seed: int, *path: int | str) -> Iterator[None]:
    """Torch's own randomness (initial weights, dropout) from this seed inside, and undisturbed outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, *path).initial_seed())
        yield
