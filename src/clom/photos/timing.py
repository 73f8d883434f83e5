"""How long learning will take: a copy of the method takes the first steps, the rest is counted.

Tested by tests/photos/test_teach.py.
"""

from __future__ import annotations

import copy
import time
import warnings

from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families.base import Method

_SECONDS, _STEPS = 2.0, 2  # what is watched at least: shorter is guesswork, longer is a nuisance


def estimate_seconds(method: Method, task: Task) -> float | None:
    """Seconds that learning `task` will take here; None if it cannot be learned. The method is not changed."""
    clock = _Clock()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever there is to say will be said when it is learned
            copy.deepcopy(method).learn(task, TrainingContext(clock))
    except _SeenEnough:
        return clock.whole()
    except UserError:
        return None
    return time.perf_counter() - clock.started


class _SeenEnough(Exception):
    """Ends learning from inside."""


class _Clock:
    """Watches some steps of one phase. The first one prepares things and is not counted."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self._first: tuple[Progress, float] | None = None
        self._last: tuple[Progress, float] | None = None

    def __call__(self, step: Progress) -> None:
        now = time.perf_counter()
        if self._first is None or self._first[0].phase != step.phase:
            self._first = step, now
        self._last = step, now
        first, since = self._first
        if now - since > _SECONDS and step.done - first.done >= _STEPS and step.done < step.total:
            raise _SeenEnough

    def whole(self) -> float:
        assert self._first is not None
        assert self._last is not None
        (first, began), (last, ended) = self._first, self._last
        return max((ended - began) / (last.share - first.share), ended - self.started)
