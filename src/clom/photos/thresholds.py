"""Below which score an image does not belong to a task, for programs that have nothing but the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from clom.evaluation.metrics import reject_threshold
from clom.methods.families.base import Method
from clom.methods.families.task_record import TaskRecord

_HALVINGS = 100


@torch.no_grad()
def thresholds(method: Method, task: int, rates: Sequence[float]) -> dict[float, float]:
    """False-rejection rate -> the smallest `belonging` with which an image still passes for one of the task's own.

    Read from the task's record where somebody noted one, otherwise from the validation images that the model keeps;
    empty if there is neither.
    """
    record = method.tasks[task].record
    if record is not None and record.belonging:
        return {rate: _turning_point(record, rate) for rate in rates}
    if (images := method.held_out_images(task)) is not None:
        own = method.blocks_and_belonging(images, [task])[1][:, 0]
        return {rate: reject_threshold(own, rate) for rate in rates}
    return {}


def _turning_point(record: TaskRecord, rate: float) -> float:
    """The score from which on familiarity, which rises with it, is above `rate`."""

    def familiarity(score: float) -> float:
        return record.familiarity(score) or 0.0

    reach = 1.0
    while not familiarity(-reach) <= rate < familiarity(reach) and math.isfinite(2 * reach):
        reach *= 2
    low, high = -reach, reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if familiarity(middle) > rate else (middle, high)
    return high
