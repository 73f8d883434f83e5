"""What the paper measures, computed from a scorebook.

Laws that hold for every method and are tested: `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`, and no calibration ever
changes TIL.
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
from clom.ood.rejection import HeldOutScores


@dataclass(frozen=True)
class Answers:
    """Per test image: is the class right when the task is given (TIL), when it is not (CIL), is the task right?"""

    til: Tensor
    cil: Tensor
    detected_task: Tensor


@dataclass(frozen=True)
class ClassIncremental:
    """One way of comparing the blocks of different tasks. Fractions, not percent."""

    cil: float
    cil_by_task: list[float]
    task_detection: float
    auc_maxlogit: float
    auc_msp: float
    task_confusion: list[list[float]]
    """Row: true task, column: detected task, as fractions of the row."""


@dataclass(frozen=True)
class Evaluation:
    """How things stand after a number of tasks; the first entry of `by_calibration` is the method's own choice."""

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
        ways = {name: ClassIncremental(**way) for name, way in data["by_calibration"].items()}
        return Evaluation(data["n_tasks"], data["til"], list(data["til_by_task"]), ways)


def answers(blocks: Blocks, labels: Tensor, task: int) -> Answers:
    """What is answered to images of `task`: Eq. 1 within its block, Eq. 2 over all blocks side by side."""
    within = blocks[task].argmax(1) == labels
    best = torch.cat(blocks, 1).argmax(1)
    ends = torch.tensor([block.shape[1] for block in blocks]).cumsum(0)
    detected = torch.bucketize(best, ends, right=True)
    start = int(ends[task]) - blocks[task].shape[1]
    return Answers(within, best == start + labels, detected)


def max_logit(block: Tensor) -> Tensor:
    return block.max(1).values


def max_softmax(block: Tensor) -> Tensor:
    return block.softmax(1).max(1).values


def auc(own: Tensor, other: Tensor) -> float:
    """P(own > other) + P(own = other) / 2: the area under the ROC curve, whichever side is called positive."""
    own, ranked = own.double(), other.double().sort().values
    if not len(own) or not len(ranked) or own.isnan().any() or ranked.isnan().any():
        raise ValueError("an AUC needs scores on both sides, all of them numbers")
    below, not_above = (torch.searchsorted(ranked, own, right=right).double() for right in (False, True))
    return float((below + not_above).mean() / (2 * len(ranked)))


def fpr95(own: Tensor, other: Tensor, accepted: float = 0.95) -> float:
    """How much of `other` passes a threshold that at least 95% of `own` pass (score >= threshold).

    Positive is what belongs to the task, as in the CLOM paper; OpenOOD and pytorch-ood call the others positive, which
    gives another number.
    """
    n_accepted = max(1, math.ceil(accepted * len(own) - 1e-9))
    threshold = own.double().sort(descending=True).values[n_accepted - 1]
    return float((other.double() >= threshold).double().mean())


def aupr(own: Tensor, other: Tensor) -> float:
    """Average precision with what belongs to the task as positive ("AUPR-in").

    With the others as positive ("AUPR-out") it is `aupr(-other, -own)`. Chance level is the share of positives.
    """
    from sklearn.metrics import average_precision_score  # slow to import, and only evaluation needs it

    truth = torch.cat([torch.ones(len(own)), torch.zeros(len(other))])
    return float(average_precision_score(truth.numpy(), torch.cat([own, other]).double().numpy()))


Grid = list[list[float]]


def pair_grid(scores_by_test: Sequence[Sequence[Tensor]], measure: Callable[[Tensor, Tensor], float]) -> Grid:
    """`[i][j]`: how well task i's model tells its own test images from task j's; `scores_by_test[test][model]`."""
    n_tasks = len(scores_by_test)
    own = [scores_by_test[task][task] for task in range(n_tasks)]
    return [[1.0 if i == j else measure(own[i], scores_by_test[j][i]) for j in range(n_tasks)] for i in range(n_tasks)]


def auc_grid(blocks_by_test: Sequence[Blocks], score: Callable[[Tensor], Tensor]) -> Grid:
    return pair_grid([[score(block) for block in blocks] for blocks in blocks_by_test], auc)


def mean_of_pairs(grid: Sequence[Sequence[float]], alone: float) -> float:
    """Mean over j != i, then over i; `alone` for a single task, which has nothing to be told from."""
    n_tasks = len(grid)
    if n_tasks < 2:
        return alone
    return sum(grid[i][j] for i in range(n_tasks) for j in range(n_tasks) if i != j) / (n_tasks * (n_tasks - 1))


def mean_auc(grid: Sequence[Sequence[float]]) -> float:
    return mean_of_pairs(grid, alone=1.0)


@dataclass(frozen=True)
class Rejection:
    """What happens when images that look like nothing learned are rejected. Rates are fractions of the images."""

    wanted: float
    threshold: float
    own: float
    """Of test images of the learned tasks: false rejections."""
    external: dict[str, float]
    """Of images of other sets: right rejections."""


def rejection(validation: Tensor, test: Tensor, external: Mapping[str, Tensor], wanted: float) -> Rejection:
    """Choose the threshold on validation images of the learned tasks, and see what it rejects."""
    threshold = HeldOutScores.of(validation.tolist()).threshold(wanted)

    def rejected(scores: Tensor) -> float:
        return _mean(scores.double() < threshold)

    return Rejection(wanted, threshold, rejected(test), {name: rejected(scores) for name, scores in external.items()})


def evaluate(book: Scorebook, calibrations: Mapping[str, Affine]) -> Evaluation:
    """Everything about the tasks learned so far, for every calibration, from the scores that are there."""
    raw = book.all_blocks()
    til = [answers(raw[test], book.labels(test), test).til for test in range(book.n_tasks)]
    ways = {name: _class_incremental(book, [way(blocks) for blocks in raw]) for name, way in calibrations.items()}
    return Evaluation(book.n_tasks, _mean(torch.cat(til)), [_mean(right) for right in til], ways)


def _class_incremental(book: Scorebook, blocks: Sequence[Blocks]) -> ClassIncremental:
    given = [answers(blocks[test], book.labels(test), test) for test in range(book.n_tasks)]
    detected = [
        torch.bincount(answer.detected_task, minlength=book.n_tasks).double() / len(answer.til) for answer in given
    ]
    right_task = torch.cat([answer.detected_task == test for test, answer in enumerate(given)])
    return ClassIncremental(
        cil=_mean(torch.cat([answer.cil for answer in given])),
        cil_by_task=[_mean(answer.cil) for answer in given],
        task_detection=_mean(right_task),
        auc_maxlogit=mean_auc(auc_grid(blocks, max_logit)),
        auc_msp=mean_auc(auc_grid(blocks, max_softmax)),
        task_confusion=[row.tolist() for row in detected],
    )


def forgetting(history: Sequence[Evaluation]) -> float:
    """Mean over all tasks but the last of: accuracy right after learning it - accuracy at the end (TIL)."""
    last = history[-1].til_by_task
    lost = [history[task].til_by_task[task] - last[task] for task in range(len(last) - 1)]
    return sum(lost) / len(lost) if lost else 0.0


def average_incremental(history: Sequence[Evaluation], of: Callable[[Evaluation], float]) -> float:
    """Mean over tasks of the average accuracy right after each."""
    return sum(of(evaluation) for evaluation in history) / len(history)


def _mean(right: Tensor) -> float:
    return float(right.double().mean())
