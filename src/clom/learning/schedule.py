"""Learning-rate schedules, as a factor of the optimiser's base learning rate."""

from __future__ import annotations

import math
from typing import Literal

from clom.settings import NonNegative, PositiveNumber, Settings


class Schedule(Settings):
    """Linear warm-up, then constant, cosine or steps; `position` is in (fractional) epochs."""

    kind: Literal["constant", "cosine", "steps"] = "cosine"
    warmup: NonNegative = 0.0
    """Epochs of linear warm-up."""
    start: NonNegative = 0.1
    """Factor at the start of the warm-up."""
    horizon: PositiveNumber | None = None
    """Epochs after the warm-up until the cosine reaches zero; by default the end of training."""
    steps: tuple[float, ...] = ()
    """Epochs after which the factor is multiplied by `drop`."""
    drop: PositiveNumber = 0.1
    every: Literal["step", "epoch"] = "step"
    """Whether the factor changes with every batch or, as in the paper, with every epoch."""

    def factor(self, position: float, epochs: float) -> float:
        if self.every == "epoch":
            position = math.floor(position)
        if position < self.warmup:
            return self.start + (1 - self.start) * position / self.warmup
        if self.kind == "cosine":
            horizon = self.horizon or max(epochs - self.warmup, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (position - self.warmup) / horizon)))
        if self.kind == "steps":
            return self.drop ** sum(position >= step for step in self.steps)
        return 1.0
