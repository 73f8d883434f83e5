"""A method that implements only what is required, without any optional capability."""

from __future__ import annotations

import torch
from torch import Tensor

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.nets import AlexNetSettings
from clom.settings import Settings


class MinimalSettings(Settings):
    """No settings."""


class Minimal(Method):
    """Scores are negative distances to the mean pixels of each class."""

    name = "minimal"
    settings_type = MinimalSettings
    means: Tensor

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.register_buffer("means", torch.empty(0, 3, *self.image_shape[1:]))

    def _open_task(self, task: LearnedTask) -> None:
        self.means = torch.cat([self.means, torch.zeros(task.n_classes, *self.means.shape[1:])])

    def _learn(self, task: Task, context: TrainingContext) -> None:
        images = to_unit(task.train.pixels)
        for label in range(task.n_classes):
            self.means[label - task.n_classes] = images[task.train.labels == label].mean(0)

    def blocks(self, pixels: Tensor) -> Blocks:
        scores = -torch.cdist(to_unit(pixels).flatten(1), self.means.flatten(1))
        return list(torch.split(scores, [task.n_classes for task in self.tasks], 1))


def minimal(image_shape: tuple[int, int, int], seed: int = 0) -> Minimal:
    return Minimal(AlexNetSettings(), MinimalSettings(), image_shape, seed)
