"""Rules, evaluated after every task, for when A-RPS switches to a new path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from clom.settings import Count, NonNegative, Positive, Settings

FisherOf = Callable[[int], Tensor]
"""From a maximum number of images to the Fisher information of each trainable parameter of the current path."""


class Interval(Settings):
    """A new path every `interval` tasks: the rule of the public code (RPS-Net), and the default."""

    kind: Literal["interval"] = "interval"
    interval: Positive = 2
    """J."""

    def should_switch(self, task: int, age: int, fisher_of: FisherOf) -> bool:
        """Whether to switch after task `task`, counted from 0, which is the `age`-th on its path."""
        return (task + 1) % self.interval == 0


class FisherCapacity(Settings):
    """A new path when too few parameters of the current one are idle, at the latest after `interval` tasks.

    Our own rule: A-RPS uses a measure of the network's capacity that is not in any public code.
    """

    kind: Literal["fisher_capacity"] = "fisher_capacity"
    interval: Positive = 4
    """Maximum number of tasks per path."""
    idle: NonNegative = 0.1
    """A parameter is idle if its Fisher information is below this fraction of the mean."""
    least_idle: NonNegative = 0.2
    """Switch if the fraction of idle parameters is below this."""
    samples: Positive = 1000

    def should_switch(self, task: int, age: int, fisher_of: FisherOf) -> bool:
        return age >= self.interval or idle_share(fisher_of(self.samples), self.idle) < self.least_idle


class Never(Settings):
    """One path for all tasks: replay and distillation on an ordinary network."""

    kind: Literal["none"] = "none"
    interval: Count = 10
    """Affects only the weight of the distillation, which is 1 for this many tasks."""

    def should_switch(self, task: int, age: int, fisher_of: FisherOf) -> bool:
        return False


Switching = Interval | FisherCapacity | Never


def idle_share(fisher: Tensor, threshold: float) -> float:
    """The fraction of parameters with a Fisher information below `threshold` times the mean; 0 if there are none."""
    return float((fisher < threshold * fisher.mean()).double().mean()) if len(fisher) else 0.0
