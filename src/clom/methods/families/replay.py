"""Methods with exemplars: a memory of ranked images, its quota, and training data of new and stored images.

Tested by tests/methods/test_baselines.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clom.data.memory import Memory
from clom.data.stream import Task
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings
from clom.settings import Count, Settings


class MemorySettings(Settings):
    """Size of the memory. The paper: 200 images in total for ten classes, 2000 for one or two hundred classes."""

    size: Count = 200
    mode: Literal["total", "per_class"] = "total"
    """`total`: `size` images divided among the classes seen so far; `per_class`: `size` images of each class."""
    rounding: Literal["floor", "ceil"] = "floor"
    """`ceil`, as in some original implementations, stores a few images more than `size`."""

    def quota(self, n_classes: int) -> int:
        """Images per class after `n_classes` classes."""
        if self.mode == "per_class":
            return self.size
        return (math.floor if self.rounding == "floor" else math.ceil)(self.size / n_classes)


class ReplaySettings(SharedSettings):
    memory: MemorySettings = MemorySettings()


class ReplayMethod(SharedNetwork):
    """A shared network trained on the new images and on exemplars of the old classes."""

    settings_type: ClassVar[type[Settings]] = ReplaySettings
    settings: ReplaySettings

    def __init__(self, net: NetSettings, settings: ReplaySettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.memory = Memory()

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    @property
    def quota(self) -> int:
        return self.settings.memory.quota(self.n_seen)

    def exemplars(self) -> tuple[Tensor, Tensor]:
        """The stored images and their labels over all tasks."""
        return self.memory.pixels, self.memory.labels + self.offsets()[self.memory.tasks]

    def new_and_stored(self, task: Task) -> tuple[Tensor, Tensor]:
        """The new training images and all exemplars, each once."""
        pixels, labels = self.new_data(task)
        if not len(self.memory):
            return pixels, labels
        stored_pixels, stored_labels = self.exemplars()
        return torch.cat([pixels, stored_pixels]), torch.cat([labels, stored_labels])

    def keep(self, task: Task, ranked: Sequence[Tensor]) -> None:
        """Shrink the memory to the quota and store the new exemplars: `ranked[c]`, the rows of class c, best first."""
        self.memory.shrink(self.quota)
        for rows in ranked:
            self.memory.add(len(self.tasks) - 1, task.train.pixels[rows], task.train.labels[rows])
