"""TPL: Lin et al., Class Incremental Learning via Likelihood Ratio Based Task Prediction, ICLR 2024.

For the model of task t: a is the largest logit and m the largest inverse Mahalanobis distance, each divided by its mean
on the task's own data; d is the distance of the normalised feature to its 5th neighbour among the stored samples of
other tasks. `S_t = -log(e^-a + e^-(m + d))`, a soft minimum, as in Algorithm 1 and the released code; the paper's Eq. 9
has a soft maximum. After an affine calibration per task, `P(t | x) = softmax(S / .05)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor, log_confidence
from clom.ood.predictors.statistics import Gaussians, TaskStatistics, inverse_mahalanobis

_STEPS, _LR, _MOMENTUM = 100, 0.01, 0.8


class Tpl(TaskPredictor):
    """The likelihood-ratio score with a soft minimum (Algorithm 1)."""

    title = "TPL"
    needs = ("features", "statistics", "samples")
    soft_maximum = False

    def __init__(self, temperature: float = 0.05, neighbour: int = 5, shrinkage: float = 1e-3) -> None:
        super().__init__()
        self.temperature, self.neighbour, self.shrinkage = temperature, neighbour, shrinkage
        self._tasks: list[TaskStatistics] = []
        self._gaussians: list[Gaussians] = []

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self._tasks, self._gaussians = list(tasks), [Gaussians.of(task, self.shrinkage) for task in tasks]
        if samples is None:
            return self
        directions = [normalised(outputs) for outputs in samples.outputs]
        # Its own samples are left out of what a task calls other.
        self.learned = {f"others_{task}": own[samples.tasks != task].float() for task, own in enumerate(directions)}
        self.learned |= fit_affine(self._scores(samples.outputs), samples.tasks, self.temperature)
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        scores = self.learned["scales"] * self._scores(outputs) + self.learned["shifts"]
        within = torch.stack([log_confidence(task.block) for task in outputs], 1)
        return within + (scores / self.temperature).log_softmax(1)

    def _scores(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """`S` before calibration, `[images, tasks]`."""
        found = []
        for number, task in enumerate(outputs):
            usual = self._tasks[number]
            logit = task.block.double().amax(1) / usual.usual_of("largest logit")[0].clamp(min=1e-12)
            distances = self._gaussians[number].distances(task.need_features())
            typical = inverse_mahalanobis(distances) / usual.usual_of("inverse mahalanobis")[0].clamp(min=1e-12)
            far = neighbour_distance(normalised(task), self.learned[f"others_{number}"].double(), self.neighbour)
            found.append(combined(logit, typical + far, self.soft_maximum))
        return torch.stack(found, 1)


class TplSoftMaximum(Tpl):
    """The score with the soft maximum that the paper's Eq. 9 prints."""

    title = "TPL (Eq. 9)"
    soft_maximum = True


def combined(logit: Tensor, ratio: Tensor, soft_maximum: bool) -> Tensor:
    """`-log(e^-a + e^-b)`, or `log(e^a + e^b)`."""
    return torch.logaddexp(logit, ratio) if soft_maximum else -torch.logaddexp(-logit, -ratio)


def normalised(outputs: TaskOutputs) -> Tensor:
    """The direction of the unrotated image's feature."""
    return F.normalize(outputs.need_features()[:, 0])


def neighbour_distance(directions: Tensor, others: Tensor, neighbour: int) -> Tensor:
    """The squared distance to the k-th nearest of the others, as in the released code; 0 if there are none."""
    if not len(others):
        return directions.new_zeros(len(directions))
    return torch.cdist(directions, others).square().kthvalue(min(neighbour, len(others)), dim=1).values


def fit_affine(scores: Tensor, tasks: Tensor, temperature: float) -> dict[str, Tensor]:
    """w and b of each task that minimise the cross-entropy of `softmax((w S + b) / T)`: 100 steps of SGD."""
    scales = torch.ones(scores.shape[1], dtype=torch.float64, requires_grad=True)
    shifts = torch.zeros(scores.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([scales, shifts], lr=_LR, momentum=_MOMENTUM)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimiser.zero_grad()
            loss = F.cross_entropy((scales * scores + shifts) / temperature, tasks)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    if not bool(torch.isfinite(torch.cat([scales, shifts])).all()):  # huge scores of an untrained network
        return {"scales": torch.ones_like(scales), "shifts": torch.zeros_like(shifts)}
    return {"scales": scales.detach(), "shifts": shifts.detach()}
