"""Learning-rate schedules, as a factor of the optimiser's base learning rate."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import model_validator

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
    drop: PositiveNumber | tuple[PositiveNumber, ...] = 0.1
    """One for all steps, or one for each."""
    every: Literal["step", "epoch"] = "step"
    """Whether the factor changes with every batch or, as in the paper, with every epoch."""

    @model_validator(mode="after")
    def _a_drop_for_each_step(self) -> Self:
        if not isinstance(self.drop, tuple):
            return self
        if len(self.drop) != len(self.steps):
            raise ValueError(f"drop has {len(self.drop)} values for {len(self.steps)} steps: give one, or one for each")
        if list(self.steps) != sorted(self.steps):
            raise ValueError("steps with a drop for each must be in order")
        return self

    def factor(self, position: float, epochs: float) -> float:
        if self.every == "epoch":
            position = math.floor(position)
        if position < self.warmup:
            return self.start + (1 - self.start) * position / self.warmup
        if self.kind == "cosine":
            horizon = self.horizon or max(epochs - self.warmup, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (position - self.warmup) / horizon)))
        if self.kind == "steps":
            done = sum(position >= step for step in self.steps)
            return math.prod(self.drop[:done]) if isinstance(self.drop, tuple) else self.drop**done
        return 1.0
