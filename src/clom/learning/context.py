"""The context of training on one task: progress reports and checkpoints.

Training is deterministic: restarting a task reaches the same phases with the same teachers, frozen weights and data. A
snapshot therefore holds only what a phase changes: the method, the phase's own objects (optimiser, batch order,
networks outside the method) and random states. When a restarted task reaches the phase, these are restored and training
continues. A finished phase is restored to its end and thus skipped.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from clom.errors import UserError
from clom.learning.precision import Precision
from clom.learning.progress import OnProgress, Progress, ignore
from clom.learning.random_states import get_random_states, set_random_states
from clom.nets.passes import PassCounter


class Stateful(Protocol):
    """Modules, optimisers, batch orders."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


State = Stateful | torch.Generator | Tensor
"""Something that changes during a phase."""


@dataclass(frozen=True)
class Snapshot:
    """The state after `step` of the `total` steps of one phase. Contains only tensors, numbers and strings."""

    phase: int
    step: int
    total: int
    method: dict[str, Tensor]
    parts: list[Any]
    torch_randomness: Tensor | list[Tensor]
    passes: float = math.nan
    """Counted since the task began; NaN in snapshots of versions that did not count them."""


@dataclass(frozen=True)
class OutOfFold:
    """Outputs for the training images of one task, each from a fit that did not see that image."""

    task: int
    photos: Tensor
    """Which of the images of the lesson."""
    labels: Tensor
    """Within the task."""
    block: Tensor
    """Scores of the task's own classes."""
    belonging: Tensor
    """The in-distribution score for the task."""
    scores: Tensor
    """Comparable scores of the classes of all tasks, `[images, classes]`."""
    start: int
    """The column of the task's first class in `scores`."""
    logit_scale: float
    """The inverse temperature of the task's block, or of all scores if tasks are compared by them."""


class Checkpoints(ABC):
    """Where the snapshots of one task are stored, and when one is taken."""

    @abstractmethod
    def latest(self, phase: int) -> Snapshot | None:
        """The last valid snapshot of a phase left by an interrupted process."""

    @abstractmethod
    def due(self) -> bool:
        """Whether a snapshot should be taken now."""

    @abstractmethod
    def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot. It may be held in memory until the next one that is due is written."""

    @abstractmethod
    def stop_if_requested(self) -> None:
        """Raise if the process was asked to stop. Called only where no work would be lost."""


class TrainingContext:
    """Reports progress and, with `checkpoints`, takes snapshots of every phase.

    One context serves one task: `Method.learn` attaches it to the method whose state is stored.
    """

    counts_only = False
    """Whether nothing but the passes matters: fits that run no network may be left out."""

    def __init__(
        self,
        on_progress: OnProgress = ignore,
        checkpoints: Checkpoints | None = None,
        seconds_between_reports: float | None = None,
        precision: Precision = "float32",
        data: Path | None = None,
        compile_with: str | None = None,
        passes: PassCounter | None = None,
        folds: int = 0,
    ) -> None:
        """By default every step is reported on a CPU, and at most five a second on an accelerator, since reading the
        loss synchronises with the device. `data` is the user's folder of data sets, for methods that need one besides
        the task's images, `compile_with` the backend of torch.compile for the networks. The task's passes are counted
        in `passes`. Methods fitted in closed form append to `out_of_fold` if there are `folds`."""
        self.on_progress, self.checkpoints = on_progress, checkpoints
        self.precision, self.data, self.compile_with, self.passes = precision, data, compile_with, passes
        self.folds, self.out_of_fold = folds, list[OutOfFold]()
        self._pause, self._last_report = seconds_between_reports, -math.inf
        self._device: torch.device | None = None
        self._method: nn.Module | None = None
        self._phases = 0
        self._between_steps = True

    def attach(self, method: nn.Module) -> None:
        """Take snapshots of `method` from now on."""
        self._method, self._phases = method, 0
        self._device = next((value.device for value in (*method.parameters(), *method.buffers())), None)

    def report_step(self, progress: Progress, loss: Tensor) -> None:
        """Report a training step. The loss is read, and checked for NaN, only if a report is due: reading it
        synchronises with the device."""
        if progress.done < progress.total and not self._report_due():
            return
        value = loss.item()
        if not math.isfinite(value):
            raise UserError(
                f"Training on task {progress.task + 1} diverged: the loss became {value} in epoch {progress.epoch} of "
                f"{progress.epochs} ({progress.phase}). Earlier tasks are intact. Try a smaller learning rate."
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

    def steps(self, total: int, *parts: State, ended: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """The steps of one phase: 0 to `total` - 1, or the remaining ones after an interruption.

        `parts` is everything the phase changes besides the method itself: optimisers, random generators, networks that
        are not (yet) part of the method. After a step for which `ended` is true no more follow; it depends on `parts`.
        """
        if self.checkpoints is None or self._method is None:
            return takewhile(lambda _: not ended(), range(total))
        return self._recorded_steps(self.checkpoints, self._method, total, parts, ended)

    def _recorded_steps(
        self,
        checkpoints: Checkpoints,
        method: nn.Module,
        total: int,
        parts: Sequence[State],
        ended: Callable[[], bool],
    ) -> Iterator[int]:
        phase, self._phases = self._phases, self._phases + 1
        snapshot = checkpoints.latest(phase)
        step = 0
        if snapshot is not None:
            _restore(snapshot, method, phase, total, parts)
            set_random_states(snapshot.torch_randomness, self._device)
            if self.passes is not None:
                self.passes.total = snapshot.passes
            step = snapshot.step
        while step < total and not ended():
            self._between_steps = False
            yield step
            self._between_steps = True
            step += 1
            # The end of a phase is always saved: without it the next phase could not be reached after a restart.
            if (step == total or ended() or checkpoints.due()) and _is_finite(method):
                states = _on_cpu([_state_of(part) for part in parts])
                own = _on_cpu(dict(method.state_dict()))
                randomness = get_random_states(self._device)
                passes = math.nan if self.passes is None else self.passes.total
                checkpoints.save(Snapshot(phase, step, total, own, states, randomness, passes))
            checkpoints.stop_if_requested()


def _on_cpu(state: Any) -> Any:
    """A copy that loads on machines without the original device."""
    return tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, state)


def _restore(snapshot: Snapshot, method: nn.Module, phase: int, total: int, parts: Sequence[State]) -> None:
    try:
        if snapshot.total != total:
            raise ValueError(f"the phase has {total} steps, not {snapshot.total}")
        method.load_state_dict(snapshot.method)
        for part, state in zip(parts, snapshot.parts, strict=True):
            _load_state(part, state)
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise UserError(
            f"The checkpoint of phase {phase + 1} was made by another version of this program ({problem}). Delete "
            "the run's 'checkpoints' folder to restart its last task."
        ) from problem


def _state_of(part: State) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, Tensor) else part.state_dict()


@torch.no_grad()
def _load_state(part: State, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, Tensor):
        part.copy_(state)
    else:
        part.load_state_dict(state)


def _is_finite(method: nn.Module) -> bool:
    """A step can make weights NaN before any loss shows it: such a state must not be saved."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in method.parameters())


def check_weights(method: nn.Module, task: str) -> None:
    """The last optimiser step may diverge after the last loss was checked."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in method.parameters()):
        raise UserError(
            f"Learning task '{task}' diverged: some weights are NaN or infinite. Earlier tasks are intact. "
            "A smaller learning rate usually helps."
        )
