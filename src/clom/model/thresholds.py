"""Below which score an image does not belong to a task, for programs that have nothing but the scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from clom.evaluation.metrics import reject_threshold
from clom.methods.base import Method
from clom.methods.masked import MaskedMethod

_HALVINGS = 100


@torch.no_grad()
def thresholds(method: Method, task: int, rates: Sequence[float]) -> dict[float, float]:
    """False-rejection rate -> the smallest calibrated score of the task's best class that is still accepted.

    Read from the task's record where somebody noted one, otherwise from the validation images that the model keeps;
    empty if there is neither. A scale is positive, so calibrating a threshold changes nothing about who passes it.
    """
    affine = next(iter(method.calibrations().values()))
    scale, shift = float(affine.scales[task]), float(affine.shifts[task])
    familiarity = getattr(getattr(method.tasks[task], "record", None), "familiarity", None)
    if familiarity is not None and familiarity(0.0) is not None:
        raw = {rate: _turning_point(familiarity, rate) for rate in rates}
    elif isinstance(method, MaskedMethod) and bool((mine := method.memory.tasks == task).any()):
        own = method.block(method.memory.pixels[mine], task).amax(1)
        raw = {rate: reject_threshold(own, rate) for rate in rates}
    else:
        return {}
    return {rate: scale * value + shift for rate, value in raw.items()}


def _turning_point(familiarity: Callable[[float], float], rate: float) -> float:
    """The score from which on a measure that rises with it is above `rate`."""
    reach = 1.0
    while not familiarity(-reach) <= rate < familiarity(reach) and math.isfinite(2 * reach):
        reach *= 2
    low, high = -reach, reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if familiarity(middle) > rate else (middle, high)
    return high
