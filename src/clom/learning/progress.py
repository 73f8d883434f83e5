"""Progress of training on a task, as reported to displays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_SHARES = {"views": (0.0, 0.85), "adapters": (0.85, 0.99), "features": (0.0, 0.92), "head": (0.92, 1.0)}


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of one phase of one task."""

    task: int
    phase: str
    done: int
    total: int
    epoch: int = 1
    epochs: int = 1
    loss: float = float("nan")
    rates: tuple[float, ...] = ()
    """The learning rates of the optimiser's parameter groups; empty if the phase has no optimiser."""

    @property
    def share(self) -> float:
        """Approximate fraction of the task's time that has passed."""
        low, high = _SHARES.get(self.phase, (0.0, 1.0))  # by default the phase is the only one
        return low + (high - low) * self.done / self.total


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Show nothing."""
