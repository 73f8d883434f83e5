"""Below which score an image does not belong to a task, for programs that have nothing but the scores.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clom.methods.families.base import Method
from clom.ood.rejection import HeldOutScores


@torch.no_grad()
def thresholds(method: Method, task: int, rates: Sequence[float]) -> dict[float, float]:
    """False-rejection rate -> the smallest `belonging` with which an image still passes for one of the task's own.

    Read from the task's record if it has one, otherwise from the held-out images that the model stores; empty if there
    is neither.
    """
    record, images = method.tasks[task].record, method.held_out_images(task)
    if record is not None and record.belonging:
        own = record.own_scores
    elif images is not None:
        own = HeldOutScores.of(method.blocks_and_belonging(images, [task])[1][:, 0].tolist())
    else:
        return {}
    return {rate: own.threshold(rate) for rate in rates}
