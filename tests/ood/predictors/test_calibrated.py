"""Calibrated logits as task predictors."""

from __future__ import annotations

import pytest
import torch

from clom.learning.calibration import CalibrationSettings, fit_to_memory
from clom.learning.loop import generator
from clom.ood.predictors.base import TaskOutputs
from clom.ood.predictors.calibrated import Calibrated, CrossTask, Scaled
from clom.ood.predictors.statistics import USUAL, TaskStatistics
from clom.testing.predictors import CLASSES, made_up_images, made_up_tasks


@pytest.mark.parametrize(
    ("kind", "settings"), [(Calibrated, CalibrationSettings()), (CrossTask, CalibrationSettings(cross_task=0.03))]
)
def test_the_largest_calibrated_logit(kind: type[Calibrated], settings: CalibrationSettings) -> None:
    _, samples = made_up_tasks()
    images, _, _ = made_up_images(seed=3)
    starts = torch.tensor([0, CLASSES[0], CLASSES[0] + CLASSES[1]])
    blocks = [outputs.block for outputs in samples.outputs]
    randomness = generator(0, "calibration", 3)
    affine = fit_to_memory(blocks, samples.labels + starts[samples.tasks], settings, randomness)
    expected = torch.stack([block.amax(1) for block in affine([outputs.block for outputs in images])], 1)
    found = kind().fit([], samples)(images)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, torch.stack([outputs.block.amax(1) for outputs in images], 1), atol=1e-2)


def test_scale_divides_by_the_usual_logit_of_the_true_class() -> None:
    usual = torch.ones(len(USUAL), 2)
    usual[USUAL.index("typical logit"), 0] = 4.0
    own = TaskStatistics(torch.zeros(1, 1, 1), torch.ones(1), usual)
    outputs = [TaskOutputs(torch.tensor([[1.0, 6.0]]))]
    assert Scaled().fit([own], None)(outputs).tolist() == [[1.5]]
