"""Below which score an image does not belong to a task, for programs that have nothing but the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from clom.evaluation.metrics import reject_threshold
from clom.methods.base import Method
from clom.methods.masked import MaskedMethod
from clom.methods.record import TaskRecord

_HALVINGS = 100


@torch.no_grad()
def thresholds(method: Method, task: int, rates: Sequence[float]) -> dict[float, float]:
    """False-rejection rate -> the smallest calibrated score of the task's best class that is still accepted.

    Read from the task's record where somebody noted one, otherwise from the validation images that the model keeps;
    empty if there is neither. A scale is positive, so calibrating a threshold changes nothing about who passes it.
    """
    affine = next(iter(method.calibrations().values()))
    scale, shift = float(affine.scales[task]), float(affine.shifts[task])
    record = method.tasks[task].record
    if record is not None and record.belonging:
        raw = {rate: _turning_point(record, rate) for rate in rates}
    elif isinstance(method, MaskedMethod) and bool((mine := method.memory.tasks == task).any()):
        own = method.block(method.memory.pixels[mine], task).amax(1)
        raw = {rate: reject_threshold(own, rate) for rate in rates}
    else:
        return {}
    return {rate: scale * value + shift for rate, value in raw.items()}


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
