"""`P(class j of task k | x) = P(j | k, x) P(k | x)`: WPTP and MORE. Neither needs stored samples here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor, log_confidence
from clom.ood.predictors.statistics import Gaussians, TaskStatistics


class Wptp(TaskPredictor):
    """Kim et al., A Theoretical Study on Solving Continual Learning, NeurIPS 2022, appendix C.

    `softmax(f^k / .1)` times `p_k / sum p`, where `p_k = max softmax(f^k / 5)`.
    """

    title = "WPTP"

    def __init__(self, within: float = 0.1, across: float = 5.0) -> None:
        super().__init__()
        self.within, self.across = within, across

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        within = torch.stack([log_confidence(task.block, self.within) for task in outputs], 1)
        return within + torch.stack([log_confidence(task.block, self.across) for task in outputs], 1).log_softmax(1)


class More(TaskPredictor):
    """Kim et al., A Multi-Head Model for Continual Learning via Out-of-Distribution Replay, CoLLAs 2022.

    `softmax(f^k / 2)` times `max_c 20 / MD(h, mu_c)`. MORE's head has an output for replayed samples of other tasks,
    which CLOM's has not: here the softmax is over the task's own classes.
    """

    title = "MORE"
    needs = ("features", "statistics")

    def __init__(self, temperature: float = 2.0, shrinkage: float = 1e-3) -> None:
        super().__init__()
        self.temperature, self.shrinkage = temperature, shrinkage
        self._gaussians: list[Gaussians] = []

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self._gaussians = [Gaussians.of(task, self.shrinkage) for task in tasks]
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        scores = [
            more_score(task.block, gaussians.unrotated(task.need_features()).sqrt(), self.temperature)
            for task, gaussians in zip(outputs, self._gaussians, strict=True)
        ]
        return torch.stack(scores, 1)


def more_score(block: Tensor, distances: Tensor, temperature: float) -> Tensor:
    """`log(max softmax(f / T) * max_c 20 / MD_c)`, from Mahalanobis distances `[images, classes]`."""
    return log_confidence(block, temperature) + (20 / distances.amin(1).clamp(min=1e-12)).log()
