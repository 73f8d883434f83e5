"""Predictors that are not fitted: the largest logit, and two rules that use one standardised OOD score per task.

| name | score of task k for image x |
|---|---|
| `argmax` | its largest score, `max f^k(x)`: CLOM's own (Eq. 2) |
| `task-then-class` | its OOD score `s^k(x)`, standardised |
| `product` | `max softmax(f^k(x)) * P(k | x)`, P the softmax over the tasks' standardised scores |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clom.ood.predictors.base import TaskOutputs, TaskPredictor, log_confidence


class Argmax(TaskPredictor):
    """The task with the largest entry of all blocks; uses no OOD score."""

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return torch.stack([task.block.amax(1) for task in outputs], 1)


class TaskThenClass(TaskPredictor):
    """The task with the highest OOD score."""

    title = "task, then class"
    needs = ("score",)

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return torch.stack([task.need_score() for task in outputs], 1)


class Product(TaskPredictor):
    """The task with the highest product of class and task probability, in log space to avoid underflow."""

    needs = ("score",)

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        within = torch.stack([log_confidence(task.block) for task in outputs], 1)
        return within + torch.stack([task.need_score() for task in outputs], 1).log_softmax(1)


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
