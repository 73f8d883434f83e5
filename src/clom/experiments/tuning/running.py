"""Running the trials of searches, several at a time, each in its own process.

Tested by tests/experiments/tuning/test_search.py.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from clom.errors import UserError
from clom.experiments.grid import Compute
from clom.experiments.task_result import TaskResult
from clom.experiments.tuning.search import Outcome, Search, Trial
from clom.stopping import StopRequest

_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_TO_STOP = 2.0  # Ctrl-C reaches the trials as well: a second signal would cost them what they have not saved


class Watcher(Protocol):
    """Is told what happens."""

    def task_done(self, trial: Trial, result: TaskResult) -> None: ...
    def trial_done(self, trial: Trial, outcome: Outcome) -> None: ...


def run_searches(
    searches: Sequence[Search], compute: Compute, jobs: int, watcher: Watcher, stop: StopRequest
) -> dict[str, str]:
    """Run all trials that are missing; returns why searches could not be finished, by name.

    The trials of a single search run in parallel. Of several searches, each runs one trial at a time, so that the
    sampler knows the results of all earlier ones and proposes the same whenever the search is repeated.
    """
    running: list[Trial] = []
    failures: dict[str, str] = {}
    try:
        while True:
            stop.raise_if_requested()
            while len(running) < jobs and (trial := _next(searches, running, failures, jobs)) is not None:
                if trial.start(compute):
                    running.append(trial)
                else:
                    watcher.trial_done(trial, trial.skip())
            if not running:
                return failures
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for trial in list(running):
                ended = trial.process is not None and trial.process.ended
                for result in trial.new_results():
                    watcher.task_done(trial, result)
                if ended:
                    running.remove(trial)
                    try:
                        watcher.trial_done(trial, trial.end())
                    except UserError as problem:
                        failures[trial.search.plan.name] = str(problem)
    finally:
        _stop(running)


def _next(searches: Sequence[Search], running: Sequence[Trial], failures: dict[str, str], jobs: int) -> Trial | None:
    at_once = jobs if len(searches) == 1 else 1
    for search in searches:
        n_running = sum(trial.search is search for trial in running)
        if n_running >= at_once or search.plan.name in failures:
            continue
        try:
            if (trial := search.next_trial(n_running)) is not None:
                return trial
        except UserError as problem:
            failures[search.plan.name] = str(problem)
    return None


def _stop(running: Sequence[Trial]) -> None:
    until = time.monotonic() + _SECONDS_TO_STOP
    processes = [trial.process for trial in running if trial.process is not None]
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.stop()
    for process in processes:
        process.wait()
