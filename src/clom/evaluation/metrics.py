"""What the paper measures, computed from a scorebook.

Laws that hold for every method and are tested: `TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`, and no calibration ever
changes TIL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from clom.evaluation.scorebook import Scorebook
from clom.learning.calibration import Affine
from clom.methods.base import Blocks


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


def auc_grid(blocks_by_test: Sequence[Blocks], score: Callable[[Tensor], Tensor]) -> list[list[float]]:
    """`[i][j]`: how well task i's model tells its own test images (positive, high score) from task j's."""
    n_tasks = len(blocks_by_test)
    grid = [[1.0] * n_tasks for _ in range(n_tasks)]
    for i in range(n_tasks):
        own = score(blocks_by_test[i][i])
        for j in range(n_tasks):
            if i != j:
                grid[i][j] = auc(own, score(blocks_by_test[j][i]))
    return grid


def auc(positive: Tensor, negative: Tensor) -> float:
    """The chance that a positive scores higher than a negative, where equal scores count half (Mann and Whitney)."""
    below, above = negative.double().sort().values, positive.double()
    if not len(below) or not len(above) or below.isnan().any() or above.isnan().any():
        raise ValueError("AUC needs scores on both sides, all of them numbers")
    higher, not_lower = torch.searchsorted(below, above), torch.searchsorted(below, above, right=True)
    return float((higher + not_lower).double().mean() / (2 * len(below)))


def mean_auc(grid: Sequence[Sequence[float]]) -> float:
    """Mean over j != i, then over i; 1 for a single task, which has nothing to be told from."""
    n_tasks = len(grid)
    if n_tasks < 2:
        return 1.0
    return sum(grid[i][j] for i in range(n_tasks) for j in range(n_tasks) if i != j) / (n_tasks * (n_tasks - 1))


def evaluate(book: Scorebook, calibrations: Mapping[str, Affine]) -> Evaluation:
    """Everything about the tasks learned so far, for every calibration, from the scores that are there."""
    raw = [book.blocks(test) for test in range(book.n_tasks)]
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
