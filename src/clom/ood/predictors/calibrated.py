"""Predictors that compare calibrated logits: the paper's affine calibration, and two of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from clom.learning.calibration import Affine, CalibrationSettings, fit_to_memory
from clom.learning.loop import generator
from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor
from clom.ood.predictors.statistics import TaskStatistics


class Calibrated(TaskPredictor):
    """The largest of `sigma_k f^k(x) + mu_k`, with sigma and mu fitted to the stored samples (Eq. 9-11)."""

    title = "calibration"
    needs = ("samples",)
    settings = CalibrationSettings()

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        if samples is not None:
            affine = calibration_of(samples, self.settings)
            self.learned = {"scales": affine.scales, "shifts": affine.shifts}
            self.learned |= {} if affine.cross_task is None else {"cross_task": affine.cross_task}
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        affine = Affine(self.learned["scales"], self.learned["shifts"], self.learned.get("cross_task"))
        return torch.stack([block.amax(1) for block in affine([task.block for task in outputs])], 1)


class CrossTask(Calibrated):
    """The same, with shifts that also depend linearly on the logits of all tasks (not in the paper)."""

    title = "cross-task calibration"
    settings = CalibrationSettings(cross_task=0.03)


class Scaled(TaskPredictor):
    """The largest logit, divided by the mean logit of the true class on the task's own data; needs no samples."""

    title = "scale"
    needs = ("statistics",)

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self.learned = {"typical": torch.stack([task.usual_of("typical logit")[0] for task in tasks]).clamp(min=1e-6)}
        return self

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return torch.stack([task.block.amax(1) for task in outputs], 1) / self.learned["typical"]


def calibration_of(samples: StoredSamples, settings: CalibrationSettings) -> Affine:
    """The affine calibration fitted to the stored samples."""
    blocks = [outputs.block for outputs in samples.outputs]
    starts = torch.tensor([0] + [block.shape[1] for block in blocks]).cumsum(0)
    randomness = generator(0, "calibration", len(blocks))
    return fit_to_memory(blocks, samples.labels + starts[samples.tasks], settings, randomness)
