"""The paper's metrics, computed from a scorebook.

For every method, `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`, and calibration never changes TIL; both are tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from clom.evaluation.scorebook import Scorebook
from clom.learning.calibration import Affine
from clom.methods.families.base import Blocks
from clom.ood.predictors.base import Decision, decided
from clom.ood.rejection import HeldOutScores


@dataclass(frozen=True)
class Correctness:
    """Per test image: whether the class is correct with a given task (TIL) and without (CIL), and the detected task."""

    til: Tensor
    cil: Tensor
    detected_task: Tensor


@dataclass(frozen=True)
class ClassIncremental:
    """Class-incremental metrics under one calibration, as fractions."""

    cil: float
    cil_by_task: list[float]
    task_detection: float
    auc_maxlogit: float
    """From each task's own scores, so it is the same for every calibration; `auc_msp` likewise."""
    auc_msp: float
    task_confusion: list[list[float]]
    """Row: true task, column: detected task, as fractions of the row."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics after a number of tasks; the first entry of `by_calibration` is the method's default calibration."""

    n_tasks: int
    til: float
    til_by_task: list[float]
    by_calibration: dict[str, ClassIncremental] = field(default_factory=dict)

    @property
    def preferred(self) -> ClassIncremental:
        return next(iter(self.by_calibration.values()))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Evaluation:
        by_calibration = {name: ClassIncremental(**values) for name, values in data["by_calibration"].items()}
        return Evaluation(data["n_tasks"], data["til"], list(data["til_by_task"]), by_calibration)


def correctness(blocks: Blocks, labels: Tensor, task: int) -> Correctness:
    """Predictions for images of `task`: Eq. 1 within its block, Eq. 2 over all blocks concatenated."""
    within = blocks[task].argmax(1) == labels
    best = torch.cat(blocks, 1).argmax(1)
    ends = torch.tensor([block.shape[1] for block in blocks]).cumsum(0)
    detected = torch.bucketize(best, ends, right=True)
    start = int(ends[task]) - blocks[task].shape[1]
    return Correctness(within, best == start + labels, detected)


def max_logit(block: Tensor) -> Tensor:
    return block.max(1).values


def max_softmax(block: Tensor) -> Tensor:
    return block.softmax(1).max(1).values


def auc(own: Tensor, other: Tensor) -> float:
    """P(own > other) + P(own = other) / 2: the area under the ROC curve, which is the same if the sides are swapped."""
    own, ranked = own.double(), other.double().sort().values
    if not len(own) or not len(ranked) or own.isnan().any() or ranked.isnan().any():
        raise ValueError("AUC needs scores on both sides, without NaN")
    below, not_above = (torch.searchsorted(ranked, own, right=right).double() for right in (False, True))
    return float((below + not_above).mean() / (2 * len(ranked)))


def fpr95(own: Tensor, other: Tensor, accepted: float = 0.95) -> float:
    """The fraction of `other` above the threshold that at least 95% of `own` reach (score >= threshold).

    In-distribution images are positive, as in the CLOM paper; OpenOOD and pytorch-ood take OOD images as positive,
    which results in a different value.
    """
    n_accepted = max(1, math.ceil(accepted * len(own) - 1e-9))
    threshold = own.double().sort(descending=True).values[n_accepted - 1]
    return float((other.double() >= threshold).double().mean())


def aupr(own: Tensor, other: Tensor) -> float:
    """Average precision with in-distribution images as positive ("AUPR-in").

    With OOD images as positive ("AUPR-out") it is `aupr(-other, -own)`. Chance level is the share of positives.
    """
    from sklearn.metrics import average_precision_score  # slow to import and only needed here

    truth = torch.cat([torch.ones(len(own)), torch.zeros(len(other))])
    return float(average_precision_score(truth.numpy(), torch.cat([own, other]).double().numpy()))


Grid = list[list[float]]


def pair_grid(scores_by_test: Sequence[Sequence[Tensor]], measure: Callable[[Tensor, Tensor], float]) -> Grid:
    """`[i][j]`: how well task i's model separates its own test images from task j's; `scores_by_test[test][model]`."""
    n_tasks = len(scores_by_test)
    own = [scores_by_test[task][task] for task in range(n_tasks)]
    return [[1.0 if i == j else measure(own[i], scores_by_test[j][i]) for j in range(n_tasks)] for i in range(n_tasks)]


def auc_grid(blocks_by_test: Sequence[Blocks], score: Callable[[Tensor], Tensor]) -> Grid:
    return pair_grid([[score(block) for block in blocks] for blocks in blocks_by_test], auc)


def mean_of_pairs(grid: Sequence[Sequence[float]], alone: float) -> float:
    """Mean over j != i, then over i; `alone` if there is only one task."""
    n_tasks = len(grid)
    if n_tasks < 2:
        return alone
    return sum(grid[i][j] for i in range(n_tasks) for j in range(n_tasks) if i != j) / (n_tasks * (n_tasks - 1))


def mean_auc(grid: Sequence[Sequence[float]]) -> float:
    return mean_of_pairs(grid, alone=1.0)


@dataclass(frozen=True)
class Rejection:
    """Rejection rates of OOD detection at a threshold, as fractions of the images."""

    wanted: float
    threshold: float
    own: float
    """Test images of the learned tasks: false rejections."""
    external: dict[str, float]
    """Images of other data sets: correct rejections."""


def rejection(validation: Tensor, test: Tensor, external: Mapping[str, Tensor], wanted: float) -> Rejection:
    """Rejection rates at the threshold chosen on validation images of the learned tasks, with target rate `wanted`."""
    threshold = HeldOutScores.of(validation.tolist()).threshold(wanted)

    def rejected(scores: Tensor) -> float:
        return _mean(scores.double() < threshold)

    return Rejection(wanted, threshold, rejected(test), {name: rejected(scores) for name, scores in external.items()})


def evaluate(book: Scorebook, decisions: Mapping[str, Affine | Decision]) -> Evaluation:
    """All metrics of the tasks learned so far, for every calibration or task predictor, from the scorebook."""
    raw = book.all_blocks()
    til = [correctness(raw[test], book.labels(test), test).til for test in range(book.n_tasks)]
    # From uncalibrated blocks: how well a task's model detects other tasks' images must not depend on their scores,
    # which the fit of a calibration does, and cross-task calibration even for every image.
    aucs = [mean_auc(auc_grid(raw, score)) for score in (max_logit, max_softmax)]
    by_calibration = {
        name: _class_incremental(book, [decided(decision, book.outputs(test)) for test in range(book.n_tasks)], *aucs)
        for name, decision in decisions.items()
    }
    return Evaluation(book.n_tasks, _mean(torch.cat(til)), [_mean(correct) for correct in til], by_calibration)


def _class_incremental(
    book: Scorebook, blocks: Sequence[Blocks], auc_maxlogit: float, auc_msp: float
) -> ClassIncremental:
    by_test = [correctness(blocks[test], book.labels(test), test) for test in range(book.n_tasks)]
    detected = [
        torch.bincount(result.detected_task, minlength=book.n_tasks).double() / len(result.til) for result in by_test
    ]
    correct_task = torch.cat([result.detected_task == test for test, result in enumerate(by_test)])
    return ClassIncremental(
        cil=_mean(torch.cat([result.cil for result in by_test])),
        cil_by_task=[_mean(result.cil) for result in by_test],
        task_detection=_mean(correct_task),
        auc_maxlogit=auc_maxlogit,
        auc_msp=auc_msp,
        task_confusion=[row.tolist() for row in detected],
    )


def forgetting(history: Sequence[Evaluation]) -> float:
    """Mean over all tasks but the last of TIL accuracy right after learning the task minus TIL accuracy at the end."""
    last = history[-1].til_by_task
    drops = [history[task].til_by_task[task] - last[task] for task in range(len(last) - 1)]
    return sum(drops) / len(drops) if drops else 0.0


def average_incremental(history: Sequence[Evaluation], of: Callable[[Evaluation], float]) -> float:
    """Average incremental accuracy: the mean over tasks of the accuracy `of` the evaluation after each."""
    return sum(of(evaluation) for evaluation in history) / len(history)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
