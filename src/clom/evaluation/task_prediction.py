"""Accuracy of task predictors: correct task, and correct task and class.

Tested by tests/ood/predictors/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.ood.predictors.base import TaskOutputs, TaskPredictor


@dataclass(frozen=True)
class Outcome:
    """Accuracies over the test images of all tasks, as fractions."""

    task_detection: float
    cil: float


def outcome(predictor: TaskPredictor, outputs: Sequence[Sequence[TaskOutputs]], labels: Sequence[Tensor]) -> Outcome:
    """Evaluate a fitted predictor; `outputs[j]` are those of all tasks' models for task j's test images."""
    task_correct, both_correct = [], []
    for task, truth in enumerate(labels):
        correct = predictor.tasks(outputs[task]) == task
        task_correct.append(correct)
        both_correct.append(correct & (outputs[task][task].block.argmax(1) == truth))
    return Outcome(float(torch.cat(task_correct).double().mean()), float(torch.cat(both_correct).double().mean()))
