"""The interface of trackers, the table of them, and the guard that keeps a failing one from stopping a run."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clom.errors import unknown
from clom.extras import require

if TYPE_CHECKING:  # so that commands can check names at once
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
    """A picture, `[height, width, 3]`."""


class Tracker(Protocol):
    """Where curves go. What an implementation raises ends the tracking, never the run."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve. Names have the form `group/name`."""

    def picture(self, name: str, pixels: Pixels, step: int) -> None:
        """Add a picture."""

    def close(self) -> None:
        """Write what is still in memory."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker may tell about a run."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    """By dotted name."""


PLACES = {
    "tensorboard": "clom.reporting.tracking.tensorboard:TensorBoard",
    "wandb": "clom.reporting.tracking.wandb:WeightsAndBiases",
    "mlflow": "clom.reporting.tracking.mlflow:MLflow",
}
_TRACES = {"tensorboard": "tensorboard", "wandb": "wandb.id", "mlflow": "mlflow.id"}
_EXTRAS = {"tensorboard": "track", "wandb": "wandb", "mlflow": "mlflow"}


def check_trackers(names: Sequence[str]) -> None:
    """Raise a `UserError` for a tracker that does not exist or is not installed."""
    for name in names:
        if name not in PLACES:
            raise unknown("tracker", name, PLACES)
        require(_EXTRAS[name], f"--track {name}")


def trackers_of(folder: Path) -> list[str]:
    """The trackers that an interrupted run in `folder` was started with."""
    return [name for name, trace in _TRACES.items() if (folder / trace).exists()]


def open_trackers(names: Sequence[str], run: TrackedRun) -> GuardedTrackers:
    """The trackers with these names, opened at the first call."""

    def opener(name: str) -> Callable[[], Tracker]:
        def open_one() -> Tracker:
            module, _, kind = PLACES[name].partition(":")
            made: Tracker = getattr(importlib.import_module(module), kind)(run)
            return made

        return open_one

    return GuardedTrackers({name: opener(name) for name in dict.fromkeys(names)})


class GuardedTrackers:
    """Several trackers as one. The first failure of a tracker, or of a drawing for it, is its last: the run continues
    without it."""

    def __init__(self, openers: Mapping[str, Callable[[], Tracker]]) -> None:
        self._openers, self._open = dict(openers), dict[str, Tracker]()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Without values, the trackers are only opened."""
        self._each(lambda tracker: tracker.scalars(values, step) if values else None)

    def picture(self, name: str, draw: Callable[[], Pixels], step: int) -> None:
        self._each(lambda tracker: tracker.picture(name, draw(), step))

    def close(self) -> None:
        self._openers = {name: opener for name, opener in self._openers.items() if name in self._open}
        self._each(lambda tracker: tracker.close())
        self._openers = {}

    @property
    def names(self) -> list[str]:
        """Those that have not failed."""
        return list(self._openers)

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, opener in list(self._openers.items()):
            try:
                if name not in self._open:
                    self._open[name] = opener()
                do(self._open[name])
            except (Exception, SystemExit) as problem:
                del self._openers[name]
                why = " ".join(str(problem).split())[:300] or type(problem).__name__
                warnings.warn(f"{name} failed and gets no more curves; the run goes on. {why}", stacklevel=3)
