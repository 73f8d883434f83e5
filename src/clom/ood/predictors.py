"""Task predictors: from blocks and one OOD score per task to the task an image belongs to.

A predictor says how strongly every task claims an image. The strongest claim wins, and the answer is that task's best
class. So an image is classified correctly exactly if its task is found and its TIL answer is right, whatever the
predictor, hence `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`.

| name | how strongly task k claims image x |
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
    """Subclasses can be made without arguments."""

    title: ClassVar[str] = ""
    """What tables call it; by default the name under which it is registered."""

    @abstractmethod
    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        """One block `[images, classes]` per task and standardised OOD scores `[images, tasks]` to how strongly each
        task claims each image, `[images, tasks]`."""

    def tasks(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        """The predicted task of every image."""
        return self(blocks, scores).argmax(1)


class Argmax(TaskPredictor):
    """The task with the largest entry of all blocks; reads no OOD score."""

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        return torch.stack([block.amax(1) for block in blocks], 1)


class TaskThenClass(TaskPredictor):
    """The task with the highest OOD score."""

    title = "task, then class"

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        return scores


class Product(TaskPredictor):
    """The task with the highest product of class and task probability, as a logarithm: small products underflow."""

    def __call__(self, blocks: Sequence[Tensor], scores: Tensor) -> Tensor:
        within = torch.stack([block.double().log_softmax(1).amax(1) for block in blocks], 1)
        return within + scores.log_softmax(1)


class Standardiser:
    """`(s^k - mean) / std` with the mean and deviation of each task's score on its own data.

    Scores of separately trained tasks have different scales. The data must be held out: scores are fitted to the
    training images and look better there than they are.
    """

    def __init__(self, means: Tensor, deviations: Tensor) -> None:
        self.means, self.deviations = means, deviations

    @staticmethod
    def fit(own: Sequence[Tensor]) -> Standardiser:
        """`own[k]`: task k's scores of its own images."""
        values = [scores.double() for scores in own]
        means = torch.stack([scores.mean() for scores in values])
        return Standardiser(means, torch.stack([scores.std(correction=0).clamp(min=1e-12) for scores in values]))

    def __call__(self, scores: Sequence[Tensor]) -> Tensor:
        """All tasks' scores of the same images: `[images, tasks]`."""
        return (torch.stack(list(scores), 1).double() - self.means) / self.deviations
