"""Task predictors: from blocks and one OOD score per task to the task of an image.

A predictor computes a score for every task. The task with the highest score is predicted, and the class is that task's
best one. So for every predictor an image is classified correctly exactly if its task and its TIL prediction are
correct, hence `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`.

| name | score of task k for image x |
|---|---|
| `argmax` | its largest score, `max f^k(x)`: CLOM's own (Eq. 2) |
| `task-then-class` | its OOD score `s^k(x)`, standardised |
| `product` | `max softmax(f^k(x)) * P(k | x)`, P the softmax over the tasks' standardised scores |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor


class TaskPredictor(ABC):
    """Base class of task predictors; subclasses must be constructible without arguments."""

    title: ClassVar[str] = ""
    """Name in tables; by default the registered name."""

    @abstractmethod
    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        """The score of each task for each image, `[images, tasks]`, from one block `[images, classes]` per task and
        standardised OOD scores `[images, tasks]`."""

    def tasks(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        """The predicted task of every image."""
        return self(blocks, scores).argmax(1)


class Argmax(TaskPredictor):
    """The task with the largest entry of all blocks; uses no OOD score."""

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        return torch.stack([block.amax(1) for block in blocks], 1)


class TaskThenClass(TaskPredictor):
    """The task with the highest OOD score."""

    title = "task, then class"

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        return scores


class Product(TaskPredictor):
    """The task with the highest product of class and task probability, in log space to avoid underflow."""

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        within = torch.stack([block.double().log_softmax(1).amax(1) for block in blocks], 1)
        return within + scores.log_softmax(1)


class Standardiser:
    """`(s^k - mean) / std` with the mean and standard deviation of each task's score on its own data.

    Scores of separately trained tasks have different scales. The data must be held out: scores are fitted to the
    training images and would be too optimistic there.
    """

    def __init__(self, means: Tensor, deviations: Tensor) -> None:
        self.means, self.deviations = means, deviations

    @staticmethod
    def fit(own: Sequence[Tensor]) -> Standardiser:
        """`own[k]`: the scores of task k for its own images."""
        values = [scores.double() for scores in own]
        means = torch.stack([scores.mean() for scores in values])
        return Standardiser(means, torch.stack([scores.std(correction=0).clamp(min=1e-12) for scores in values]))

    def __call__(self, scores: Sequence[Tensor]) -> Tensor:
        """Standardise the scores of all tasks for the same images: `[images, tasks]`."""
        return (torch.stack(list(scores), 1).double() - self.means) / self.deviations
