"""The progress of a run while it trains: `progress.jsonl`, which `clom watch` shows and trackers are fed with.

A line is added at most five times a second, later once for every 0.1% of the time spent, so that the longest run has
some ten thousand lines. Every process that works on the run begins with a line that has `n_tasks`.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clom.errors import UserError
from clom.files import parse_json, read_text
from clom.learning.progress import Progress

if TYPE_CHECKING:
    from clom.methods.families.base import Method

NAME = "progress.jsonl"
_PAUSE, _SHARE_OF_TIME = 0.2, 0.001

OnValues = Callable[[Mapping[str, float], int], None]
"""Called with values by name, and the training step that they belong to; at first without values, before the time of
the training is taken, so that a tracker can be opened."""


def ignore_values(values: Mapping[str, float], step: int) -> None:
    """Follow nothing."""


@dataclass(frozen=True)
class Sample:
    """One line: where the run was at a time, and the values then."""

    time: float
    step: int
    progress: Progress
    values: Mapping[str, float]


@dataclass
class RecordedProgress:
    """The content of `progress.jsonl`."""

    n_tasks: int = 0
    samples: list[Sample] = field(default_factory=list)
    session: int = 0
    """The index of the first sample of the last process."""

    def fraction(self, sample: Sample) -> float:
        """The approximate share of the run's time that had passed."""
        return (sample.progress.task + sample.progress.share) / max(1, self.n_tasks)

    def seconds_left(self) -> float | None:
        """Estimated from the last process; None if it has not done a hundredth of the run yet."""
        if self.session >= len(self.samples):
            return None
        first, last = self.samples[self.session], self.samples[-1]
        done = self.fraction(last) - self.fraction(first)
        return (last.time - first.time) / done * (1 - self.fraction(last)) if done >= 0.01 else None


class ProgressFile:
    """Writes `progress.jsonl`. That it cannot be written is no reason to stop a run."""

    def __init__(self, folder: Path, method: Method, n_tasks: int, on_values: OnValues = ignore_values) -> None:
        self._path, self._method, self._on_values = folder / NAME, method, on_values
        self._began, self._last = time.monotonic(), -math.inf
        self._counter = StepCounter(_last_sample(folder))
        self._broken = False
        on_values({}, 0)
        self._write({"n_tasks": n_tasks}, "\n" if self._path.exists() else "")  # a killed process leaves half a line

    def step(self, progress: Progress) -> None:
        """Add a line, if it is time for one, and pass on the values."""
        step, now = self._counter(progress), time.monotonic()
        if now - self._last < max(_PAUSE, _SHARE_OF_TIME * (now - self._began)):
            return
        self._last = now
        values = {**_own_values(progress), **self._method.training_values()}
        where = {name: getattr(progress, name) for name in ("task", "phase", "done", "total", "epoch", "epochs")}
        self._write({"step": step, **where, "values": values})
        self._on_values(values, step)

    def _write(self, content: Mapping[str, Any], start: str = "") -> None:
        if self._broken:
            return
        try:
            line = json.dumps({"time": round(time.time(), 2), **content})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{start}{line}\n")
        except OSError as problem:
            self._broken = True
            warnings.warn(f"{self._path} cannot be written ({problem.strerror}); the run goes on.", stacklevel=3)


class StepCounter:
    """Counts training steps over all phases and tasks; steps that are repeated after an interruption count once."""

    def __init__(self, last: Sample | None = None) -> None:
        """`last` is the last sample of an interrupted process."""
        self._resumed = last is not None
        self._at = None if last is None else last.progress
        self._before = 0 if last is None else last.step - last.progress.done

    def __call__(self, progress: Progress) -> int:
        at = self._at
        same = at is not None and (at.task, at.phase) == (progress.task, progress.phase)
        # A phase of the same name may follow itself; after an interruption a phase goes back to its checkpoint.
        if at is not None and not (same and (progress.done >= at.done or self._resumed)):
            self._before += at.done
        self._at, self._resumed = progress, False
        return self._before + progress.done


def _own_values(progress: Progress) -> dict[str, float]:
    loss = {} if math.isnan(progress.loss) else {f"loss/{progress.phase}": progress.loss}
    numbered = [f"rate/{progress.phase}", *(f"rate/{progress.phase}/{number}" for number in range(2, 10))]
    return loss | dict(zip(numbered, progress.rates, strict=False))


def _last_sample(folder: Path) -> Sample | None:
    try:
        samples = read_progress(folder).samples
    except UserError:
        return None
    return samples[-1] if samples else None


def read_progress(folder: Path) -> RecordedProgress:
    """What is recorded so far; lines that are damaged or not yet complete are left out."""
    recorded = RecordedProgress()
    path = folder / NAME
    for line in _lines(read_text(path).splitlines() if path.exists() else []):
        try:
            if "n_tasks" in line:
                recorded.n_tasks, recorded.session = max(1, int(line["n_tasks"])), len(recorded.samples)
            else:
                recorded.samples.append(_sample(line))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            continue
    return recorded


def _lines(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _sample(line: Mapping[str, Any]) -> Sample:
    task, done, total, epoch, epochs = (int(line[name]) for name in ("task", "done", "total", "epoch", "epochs"))
    if not 0 <= done <= total or total < 1:
        raise ValueError("a step outside its phase")
    values = {str(name): float(value) for name, value in line["values"].items()}
    progress = Progress(task, str(line["phase"]), done, total, epoch, epochs)
    return Sample(float(line["time"]), int(line["step"]), progress, values)
