"""How often a task predictor finds the task, and how often the class is right as well.

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
    """Fractions over the test images of all tasks."""

    task_detection: float
    cil: float


def outcome(
    predictor: TaskPredictor, blocks: Sequence[Blocks], scores: Sequence[Tensor], labels: Sequence[Tensor]
) -> Outcome:
    """Entry j of all three sequences is about task j's test images."""
    task_right, both_right = [], []
    for task, right in enumerate(labels):
        found = predictor.tasks(blocks[task], scores[task]) == task
        task_right.append(found)
        both_right.append(found & (blocks[task][task].argmax(1) == right))
    return Outcome(float(torch.cat(task_right).double().mean()), float(torch.cat(both_right).double().mean()))
