"""ROW: Kim, Xiao, Konishi, Liu, Learnability and Algorithm for Continual Learning, ICML 2023."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor, log_confidence
from clom.ood.predictors.other_heads import OtherHeads
from clom.ood.predictors.statistics import Gaussians, TaskStatistics


class RowWithoutSamples(TaskPredictor):
    """The part of ROW that needs no samples: `softmax(f^k / T) * m_k / sum m`.

    `m_k = max_c 1 / sqrt((h - mu_c)' (.8 S + .2 I)^-1 (h - mu_c))`.
    """

    title = "ROW without samples"
    needs: ClassVar[Collection[str]] = ("features", "statistics")

    def __init__(self, temperature: float = 5.0, identity: float = 0.2) -> None:
        super().__init__()
        self.temperature, self.identity = temperature, identity
        self._gaussians: list[Gaussians] = []

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self._gaussians = [Gaussians.of(task, self.identity, unit=True) for task in tasks]
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        within = torch.stack([log_confidence(task.block, self.temperature) for task in outputs], 1)
        return within + self._log_coefficients(outputs)

    def _log_coefficients(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """`log m_k / sum m`, `[images, tasks]`."""
        pairs = zip(outputs, self._gaussians, strict=True)
        nearest = [gaussians.unrotated(task.need_features()).amin(1).clamp(min=1e-24) for task, gaussians in pairs]
        return log_shares(torch.stack(nearest, 1).rsqrt())


class Row(RowWithoutSamples):
    """`softmax(f^k / T) * max_j softmax(o^k / T)_j * m_k / sum m`: o^k is a second head with an output for other tasks.

    The second heads are fitted to the stored samples after each task: here to the optimum of the regularised loss, in
    the publication by ten epochs of SGD.
    """

    title = "ROW"
    needs = ("features", "statistics", "samples")

    def __init__(self, temperature: float = 5.0, identity: float = 0.2, l2: float = 1e-4) -> None:
        super().__init__(temperature, identity)
        self.l2 = l2

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        super().fit(tasks, samples)
        if samples is not None:
            heads = OtherHeads.fit(samples, rotations=1, l2=self.l2, iterations=100)
            self.learned = stored_heads(heads)
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        heads = restored_heads(self.learned, rotations=1)
        return super().__call__(outputs) + heads.own_log_probability(outputs, self.temperature)


def log_shares(coefficients: Tensor) -> Tensor:
    """The log of each task's share of the sum over tasks."""
    return coefficients.log() - coefficients.sum(1, keepdim=True).log()


def stored_heads(heads: OtherHeads) -> dict[str, Tensor]:
    """The heads as named tensors."""
    weights = {f"weight_{task}": weight for task, weight in enumerate(heads.weights)}
    return weights | {f"bias_{task}": bias for task, bias in enumerate(heads.biases)}


def restored_heads(learned: dict[str, Tensor], rotations: int) -> OtherHeads:
    """The heads of `stored_heads`."""
    count = sum(name.startswith("weight_") for name in learned)
    weights, biases = ([learned[f"{part}_{task}"] for task in range(count)] for part in ("weight", "bias"))
    return OtherHeads(weights, biases, rotations)
