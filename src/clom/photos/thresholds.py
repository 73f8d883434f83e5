"""Rejection thresholds per task, for programs that only have the scores.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clom.methods.families.base import Method
from clom.ood.rejection import HeldOutScores


@torch.no_grad()
def thresholds(method: Method, task: int, rates: Sequence[float]) -> dict[float, float]:
    """False-rejection rate -> the smallest `belonging` at which an image is accepted as in-distribution.

    Computed from the task's record, or else from the held-out images stored in the model; empty if there is neither.
    """
    record, images = method.tasks[task].record, method.held_out_images(task)
    if record is not None and record.belonging:
        own = record.own_scores
    elif images is not None:
        own = HeldOutScores.of(method.blocks_and_belonging(images, [task])[1][:, 0].tolist())
    else:
        return {}
    return {rate: own.threshold(rate) for rate in rates}
