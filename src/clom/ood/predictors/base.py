"""The interface of task predictors.

A predictor computes a score for every task. The task with the highest score is predicted, and the class is that task's
best one. So for every predictor an image is classified correctly exactly if its task and its TIL prediction are
correct, hence `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`.

Nothing is trained again when a predictor is exchanged. What it may use is declared in `needs`: statistics of a task's
own data are taken once, when the task is learned, and never change; samples are the few images that the method stores.

Tested by tests/ood/predictors/test_rules.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from clom.learning.calibration import Affine
from clom.ood.predictors.outputs import NEEDS as NEEDS
from clom.ood.predictors.outputs import TaskOutputs as TaskOutputs
from clom.ood.predictors.statistics import TaskStatistics


@dataclass(frozen=True)
class StoredSamples:
    """The samples that a method stores, as every task's model sees them."""

    outputs: Sequence[TaskOutputs]
    """One entry per task's model, each for all samples."""
    tasks: Tensor
    """The task of each sample."""
    labels: Tensor
    """The class of each sample within its task."""

    def __len__(self) -> int:
        return len(self.tasks)

    def rows(self, index: Tensor) -> StoredSamples:
        """Some of the samples."""
        return StoredSamples([outputs.rows(index) for outputs in self.outputs], self.tasks[index], self.labels[index])

    def folds(self, count: int) -> Tensor:
        """A fold from 0 to `count` - 1 for each sample; the samples of a class are dealt out in turn."""
        fold = torch.zeros_like(self.tasks)
        for kind in torch.unique(torch.stack([self.tasks, self.labels], 1), dim=0):
            own = ((self.tasks == kind[0]) & (self.labels == kind[1])).nonzero().flatten()
            fold[own] = torch.arange(len(own)) % count
        return fold


class TaskPredictor(ABC):
    """Base class of task predictors: `fit`, then call. Subclasses must be constructible without arguments."""

    title: ClassVar[str] = ""
    """Name in tables; by default the registered name."""
    needs: ClassVar[Collection[str]] = ()
    """What it uses besides the blocks: a tuple of names from `NEEDS`."""

    def __init__(self) -> None:
        self.learned: dict[str, Tensor] = {}
        """What `fit` learned from the samples, by name: saved with the model."""

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        """Called after each task with the statistics of all tasks so far and the stored samples, as far as they are
        needed; does nothing by default. When a model is loaded, `learned` is restored and there are no samples: what
        was learned from them must be kept."""
        return self

    @abstractmethod
    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """The score of each task for each image, `[images, tasks]`, from the outputs of every task's model."""

    def tasks(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """The predicted task of every image."""
        return self(outputs).argmax(1)


def joint(blocks: Sequence[Tensor], scores: Tensor) -> list[Tensor]:
    """Blocks whose largest entries are the tasks' scores: their argmax over all classes is the best class of the task
    with the highest score. Differences within a block stay as they are."""
    exact = [block.double() for block in blocks]
    return [block - block.amax(1, keepdim=True) + scores[:, [task]].to(block.dtype) for task, block in enumerate(exact)]


def log_confidence(block: Tensor, temperature: float = 1.0) -> Tensor:
    """`log max softmax(f / T)`, `[images]`."""
    return (block.double() / temperature).log_softmax(1).amax(1)


Decision = Callable[[Sequence[TaskOutputs]], list[Tensor]]
"""Blocks that are comparable across tasks, from the outputs of every task's model."""


def decided(decision: Affine | Decision, outputs: Sequence[TaskOutputs]) -> list[Tensor]:
    """The blocks that a calibration or a task predictor compares."""
    return decision([task.block for task in outputs]) if isinstance(decision, Affine) else decision(outputs)
