"""Going on within a task: what a phase of learning keeps of itself, and how it finds its place again.

Learning is deterministic. A task that is begun again from the state before it comes to the same phases with the same
teachers, guards and data. So a checkpoint holds only what a phase changes: the method, the phase's own parts and the
sources of randomness. When the phase is met again these are put back, and the code around it goes on as if nothing had
happened. A phase that was finished is met at its end and passed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from clom.errors import UserError

if TYPE_CHECKING:
    from clom.learning.loop import Progress, Report


class Stateful(Protocol):
    """Modules, optimisers, orders of batches."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


State = Stateful | torch.Generator | Tensor
"""Something that changes while a phase goes on."""


@dataclass(frozen=True)
class Snapshot:
    """How things stood in one phase of a task after `step` of its `total` steps. Tensors, numbers and names only."""

    phase: int
    step: int
    total: int
    method: dict[str, Tensor]
    parts: list[Any]
    torch_randomness: Tensor


class Checkpoints(ABC):
    """Where the snapshots of one task are kept, and when one is taken."""

    @abstractmethod
    def latest(self, phase: int) -> Snapshot | None:
        """The last good snapshot of a phase that an interrupted process left."""

    @abstractmethod
    def due(self) -> bool:
        """Whether the present state should be kept."""

    @abstractmethod
    def save(self, snapshot: Snapshot) -> None:
        """Keep it; at the latest with the next one that is due it is safe against whatever may happen."""

    @abstractmethod
    def stop_if_asked(self) -> None:
        """Called at moments at which nothing is lost: raise if somebody wants the process to end."""


class Journal:
    """The `report` of a task that is kept track of: passes progress on, and takes snapshots of every phase."""

    def __init__(self, method: nn.Module, report: Report, checkpoints: Checkpoints) -> None:
        self.method, self.report, self.checkpoints = method, report, checkpoints
        self._phases = 0
        self._between_steps = True

    def __call__(self, progress: Progress) -> None:
        self.report(progress)
        if self._between_steps:
            self.checkpoints.stop_if_asked()

    def steps(self, total: int, parts: Sequence[State]) -> Iterator[int]:
        """The steps of the next phase that are left to do."""
        phase, self._phases = self._phases, self._phases + 1
        step = self._go_back(phase, total, parts)
        while step < total:
            self._between_steps = False
            yield step
            self._between_steps = True
            step += 1
            # The end of a phase is always kept: without it the phases after it could not be reached again.
            if (step == total or self.checkpoints.due()) and _is_finite(self.method):
                kept = [_taken(part) for part in parts]
                state = dict(self.method.state_dict())
                self.checkpoints.save(Snapshot(phase, step, total, state, kept, torch.get_rng_state()))
            self.checkpoints.stop_if_asked()

    def _go_back(self, phase: int, total: int, parts: Sequence[State]) -> int:
        """Put back what an interrupted process left of this phase; how many steps it had done."""
        snapshot = self.checkpoints.latest(phase)
        if snapshot is None:
            return 0
        try:
            if snapshot.total != total:
                raise ValueError(f"the phase has {total} steps, not {snapshot.total}")
            self.method.load_state_dict(snapshot.method)
            for part, kept in zip(parts, snapshot.parts, strict=True):
                _put_back(part, kept)
        except (KeyError, TypeError, ValueError, RuntimeError) as problem:
            raise UserError(
                f"The checkpoint of phase {phase + 1} was made by another version of this program ({problem}). Remove "
                "the folder 'checkpoints' of the run to begin its last task anew."
            ) from problem
        torch.set_rng_state(snapshot.torch_randomness)
        return snapshot.step


def steps(total: int, report: Report, *parts: State) -> Iterator[int]:
    """Count the steps of one phase of a task: 0 to `total` - 1, or what is left of them after an interruption.

    `parts` is all that the phase changes besides the method itself: optimisers, sources of randomness, networks that
    are not in the method yet or never will be.
    """
    return report.steps(total, parts) if isinstance(report, Journal) else iter(range(total))


def _taken(part: State) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, Tensor) else part.state_dict()


@torch.no_grad()
def _put_back(part: State, kept: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(kept)
    elif isinstance(part, Tensor):
        part.copy_(kept)
    else:
        part.load_state_dict(kept)


def _is_finite(method: nn.Module) -> bool:
    """A step can ruin the weights before any loss shows it: such a state is not worth keeping."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in method.parameters())
