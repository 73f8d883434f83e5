"""Accuracy of task predictors: correct task, and correct task and class.

Tested by tests/ood/test_predictors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.methods.families.base import Blocks
from clom.ood.predictors import TaskPredictor


@dataclass(frozen=True)
class Outcome:
    """Accuracies over the test images of all tasks, as fractions."""

    task_detection: float
    cil: float


def outcome(
    predictor: TaskPredictor, blocks: Sequence[Blocks], scores: Sequence[Tensor], labels: Sequence[Tensor]
) -> Outcome:
    """Evaluate a predictor; entry j of each sequence belongs to task j's test images."""
    task_correct, both_correct = [], []
    for task, truth in enumerate(labels):
        correct = predictor.tasks(blocks[task], scores[task]) == task
        task_correct.append(correct)
        both_correct.append(correct & (blocks[task][task].argmax(1) == truth))
    return Outcome(float(torch.cat(task_correct).double().mean()), float(torch.cat(both_correct).double().mean()))
