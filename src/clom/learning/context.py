"""What accompanies the training of one task: progress reports and checkpoints.

Training is deterministic. A task that is started again from the state before it reaches the same phases with the same
teachers, frozen weights and data. A snapshot therefore holds only what a phase changes: the method, the phase's own
parts (optimiser, order of batches, networks outside the method) and random states. When the phase is reached again,
these are restored and the code around it carries on. A finished phase is restored at its end and thus skipped.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from clom.errors import UserError
from clom.learning.progress import OnProgress, Progress, ignore
from clom.learning.random_states import get_random_states, set_random_states


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
    torch_randomness: Tensor | list[Tensor]


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
    def stop_if_requested(self) -> None:
        """Called at moments at which nothing is lost: raise if somebody wants the process to end."""


class TrainingContext:
    """Tells a display about progress and, with `checkpoints`, takes snapshots of every phase.

    One context serves one task: `Method.learn` attaches it to the method whose state the snapshots hold.
    """

    def __init__(
        self,
        on_progress: OnProgress = ignore,
        checkpoints: Checkpoints | None = None,
        seconds_between_reports: float | None = None,
    ) -> None:
        """By default every step is reported on a CPU; an accelerator, which has to be waited for, is left alone for a
        fifth of a second in between."""
        self.on_progress, self.checkpoints = on_progress, checkpoints
        self._pause, self._last_report = seconds_between_reports, -math.inf
        self._device: torch.device | None = None
        self._method: nn.Module | None = None
        self._phases = 0
        self._between_steps = True

    def attach(self, method: nn.Module) -> None:
        """From now on `method` is what snapshots are taken of."""
        self._method, self._phases = method, 0
        self._device = next((value.device for value in (*method.parameters(), *method.buffers())), None)

    def report_step(self, progress: Progress, loss: Tensor) -> None:
        """Report a training step. The loss is read, and a NaN noticed, only if a report is due: reading it makes the
        host wait for the device."""
        if progress.done < progress.total and not self._report_due():
            return
        value = loss.item()
        if not math.isfinite(value):
            raise UserError(
                f"Learning task {progress.task + 1} diverged: the loss became {value} in epoch {progress.epoch} of "
                f"{progress.epochs} ({progress.phase}). What was learned before is intact. A smaller learning rate "
                "usually helps."
            )
        self.report(replace(progress, loss=value))

    def _report_due(self) -> bool:
        pause = self._pause
        if pause is None:
            pause = 0.0 if self._device is None or self._device.type == "cpu" else 0.2
        return time.monotonic() - self._last_report >= pause

    def report(self, progress: Progress) -> None:
        self._last_report = time.monotonic()
        self.on_progress(progress)
        if self.checkpoints is not None and self._between_steps:
            self.checkpoints.stop_if_requested()

    def steps(self, total: int, *parts: State) -> Iterator[int]:
        """The steps of one phase: 0 to `total` - 1, or what is left of them after an interruption.

        `parts` is all that the phase changes besides the method itself: optimisers, random generators, networks that
        are not part of the method (yet).
        """
        if self.checkpoints is None or self._method is None:
            return iter(range(total))
        return self._recorded_steps(self.checkpoints, self._method, total, parts)

    def _recorded_steps(
        self, checkpoints: Checkpoints, method: nn.Module, total: int, parts: Sequence[State]
    ) -> Iterator[int]:
        phase, self._phases = self._phases, self._phases + 1
        snapshot = checkpoints.latest(phase)
        step = 0
        if snapshot is not None:
            _restore(snapshot, method, phase, total, parts)
            set_random_states(snapshot.torch_randomness, self._device)
            step = snapshot.step
        while step < total:
            self._between_steps = False
            yield step
            self._between_steps = True
            step += 1
            # The end of a phase is always kept: without it the phases after it could not be reached again.
            if (step == total or checkpoints.due()) and _is_finite(method):
                states = _on_cpu([_state_of(part) for part in parts])
                own = _on_cpu(dict(method.state_dict()))
                checkpoints.save(Snapshot(phase, step, total, own, states, get_random_states(self._device)))
            checkpoints.stop_if_requested()


def _on_cpu(state: Any) -> Any:
    """A state that can be read on a machine without the device it was taken on."""
    return tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, state)


def _restore(snapshot: Snapshot, method: nn.Module, phase: int, total: int, parts: Sequence[State]) -> None:
    """Restore what an interrupted process left of this phase."""
    try:
        if snapshot.total != total:
            raise ValueError(f"the phase has {total} steps, not {snapshot.total}")
        method.load_state_dict(snapshot.method)
        for part, state in zip(parts, snapshot.parts, strict=True):
            _load_state(part, state)
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise UserError(
            f"The checkpoint of phase {phase + 1} was made by another version of this program ({problem}). Remove "
            "the folder 'checkpoints' of the run to restart its last task."
        ) from problem


def _state_of(part: State) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, Tensor) else part.state_dict()


@torch.no_grad()
def _load_state(part: State, kept: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(kept)
    elif isinstance(part, Tensor):
        part.copy_(kept)
    else:
        part.load_state_dict(kept)


def _is_finite(method: nn.Module) -> bool:
    """A step can ruin the weights before any loss shows it: such a state is not worth keeping."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in method.parameters())
