"""Our predictors: how typical an image's features are for a task, and whether they look like those of other tasks.

| name | score of task k | stored samples |
|---|---|---|
| `mahalanobis` | squared distance to the nearest class, averaged over rotations, standardised on own data | none |
| `fusion-no-samples` | that plus the standardised largest logit | none |
| `other-head` | log-odds of "own class" against "another task", averaged over rotations | yes |
| `fusion` | a weighted sum of the largest logit after cross-task calibration and the log-odds | yes |

The two weights of `fusion` are shared by all tasks and fitted, by a softmax over tasks, to the stored samples. The
calibration and the heads whose scores they are fitted to were fitted to other samples (cross-fitting). On held-out
images of digits, MNIST and CIFAR-10 this was at least as good as with the distance or with the paper's calibration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor
from clom.ood.predictors.calibrated import CrossTask
from clom.ood.predictors.other_heads import OtherHeads
from clom.ood.predictors.row import restored_heads, stored_heads
from clom.ood.predictors.statistics import SHRINKAGE, Gaussians, TaskStatistics, rotation_mahalanobis

_FOLDS, _L2, _ITERATIONS = 3, 1e-4, 50
_PRIOR = 1e-3  # keeps the weights finite where the samples are separable


class Mahalanobis(TaskPredictor):
    """Mahalanobis distance over rotation classes; needs no samples."""

    title = "rotation Mahalanobis"
    needs: ClassVar[Collection[str]] = ("features", "statistics")

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[TaskStatistics] = []
        self._gaussians: list[Gaussians] = []

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self._tasks, self._gaussians = list(tasks), [Gaussians.of(task, SHRINKAGE) for task in tasks]
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return self._typical(outputs)

    def _typical(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """The standardised distance score, `[images, tasks]`; high = belongs."""
        found = []
        for statistics, gaussians, task in zip(self._tasks, self._gaussians, outputs, strict=True):
            score = rotation_mahalanobis(gaussians.distances(task.need_features()))
            found.append(statistics.standardised("rotation mahalanobis", score))
        return torch.stack(found, 1)

    def _largest(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """The standardised largest logit, `[images, tasks]`."""
        pairs = zip(self._tasks, outputs, strict=True)
        return torch.stack([own.standardised("largest logit", task.block.amax(1)) for own, task in pairs], 1)


class FusionWithoutSamples(Mahalanobis):
    """The sum of the standardised largest logit and the standardised distance."""

    title = "fusion without samples"

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return self._largest(outputs) + self._typical(outputs)


class OtherHead(TaskPredictor):
    """A head per task with one output for all other tasks, over all rotations."""

    title = "other head"
    needs = ("features", "samples")

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        if samples is not None:
            heads = OtherHeads.fit(samples, _rotations(samples.outputs), _L2, _ITERATIONS)
            self.learned = stored_heads(heads)
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return restored_heads(self.learned, _rotations(outputs)).log_odds(outputs)


class Fusion(TaskPredictor):
    """Cross-task calibration and other heads, fused by a softmax over tasks."""

    title = "fusion"
    needs = ("features", "samples")

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        if samples is not None:
            evidence = torch.stack([cross_fitted(kind, samples) for kind in _FUSED], 2)
            self.learned = {"weights": fit_weights(evidence, samples.tasks)}
            for kind in _FUSED:
                self.learned |= kind().fit(tasks, samples).learned
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        evidence = []
        for kind in _FUSED:
            part = kind()
            part.learned = self.learned
            evidence.append(part(outputs).double())
        return torch.stack(evidence, 2) @ self.learned["weights"].double()


_FUSED: tuple[type[TaskPredictor], ...] = (CrossTask, OtherHead)


def cross_fitted(kind: type[TaskPredictor], samples: StoredSamples) -> Tensor:
    """The scores of every sample by predictors that were not fitted to it, `[samples, tasks]`."""
    folds = samples.folds(_FOLDS)
    found = torch.zeros(len(samples), len(samples.outputs), dtype=torch.float64)
    for fold in range(_FOLDS):
        fitted_to, judged = samples.rows(folds != fold), samples.rows(folds == fold)
        if len(fitted_to) and len(judged):  # a single sample of each class leaves none to fit to
            found[folds == fold] = kind().fit([], fitted_to)(judged.outputs).double()
    return found


def fit_weights(evidence: Tensor, tasks: Tensor) -> Tensor:
    """Weights of the kinds of evidence, `[kinds]`, that minimise the cross-entropy of the softmax over tasks.

    `evidence [samples, tasks, kinds]`. The problem is convex.
    """
    weights = torch.zeros(evidence.shape[2], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(evidence @ weights, tasks) + _PRIOR * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        solver.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach()


def _rotations(outputs: Sequence[TaskOutputs]) -> int:
    return outputs[0].need_features().shape[1]
