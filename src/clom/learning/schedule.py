"""How the learning rate changes over a task, as a factor of what the optimiser was built with."""

from __future__ import annotations

import math
from typing import Literal

from clom.settings import NonNegative, PositiveNumber, Settings


class Schedule(Settings):
    """Linear warm-up, then cosine or steps; `position` counts epochs and their fractions."""

    kind: Literal["constant", "cosine", "steps"] = "cosine"
    warmup: NonNegative = 0.0
    """Epochs of linear warm-up."""
    start: NonNegative = 0.1
    """Factor at the very beginning of the warm-up."""
    horizon: PositiveNumber | None = None
    """Epochs the cosine takes to reach zero after the warm-up; by default it ends with the training."""
    steps: tuple[float, ...] = ()
    """Epochs after which the factor is multiplied by `drop`."""
    drop: PositiveNumber = 0.1
    every: Literal["step", "epoch"] = "step"
    """Whether the factor changes with each batch or stays for an epoch, as in the paper."""

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
