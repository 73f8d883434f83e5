"""`clom tune`: search for a recipe on held-out training images.

Tested by tests/experiments/tuning/test_search.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Table

from clom.cli.console import Console
from clom.cli.display import beside_bar, duration, progress_bar
from clom.cli.options import Allowance, DataFolder, Device, Precision
from clom.errors import UserError
from clom.extras import require

if TYPE_CHECKING:
    from clom.experiments.task_result import TaskResult
    from clom.experiments.tuning.plans import SearchPlan
    from clom.experiments.tuning.search import Outcome, Search, Trial


def tune_command(
    experiment: str,
    *,
    method: str = "clom",
    trials: Annotated[int, Parameter(validator=Number(gte=1))] = 6,
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    data: DataFolder | None = None,
    out: Path | None = None,
    space: Path | None = None,
    two_phase: Annotated[tuple[str, ...], Parameter(name="--two-phase", negative=())] = (),
    record: Path | None = None,
    budget: str = "cpu",
    allowance: Allowance | None = None,
    threads: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    seed: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Search for a method's recipe: trials with different settings, judged by held-out training images.

    The first trial has the published settings, the second those of the hand-written recipe; the others are proposed by
    optuna. Repeating the command continues an interrupted search. Test images are never looked at.

    Parameters
    ----------
    experiment
        For example cifar10-5t; `clom list` shows all. For your own, the path of its YAML file.
    method
        For example icarl, or all. For your own, my_file.py:Mine or package.module:Mine.
    trials
        Number of trials, including the first two.
    jobs
        Number of trials that run in parallel.
    data
        Folder with the data sets; by default CLOM_DATA or the download cache.
    out
        Folder for the search; by default `runs/search-<experiment>-<method>`. For all methods, the folder for all of
        their searches.
    space
        YAML file with the search space; by default that of the method's recipe.
    two_phase
        Another experiment for which the recipe that is found is written as well (repeatable).
    record
        Folder to copy the search's JSON record to, for example results/searches.
    budget
        Budget whose data and network are used.
    allowance
        Passes that a whole run may use; by default the experiment's.
    threads
        CPU threads per trial.
    seed
        Random seed of the trials and the sampler.
    """
    require("tune", "clom tune")
    from clom.experiments.catalogue import name_of
    from clom.experiments.config import resolve
    from clom.experiments.tuning.plans import plan_search
    from clom.methods.registry import METHODS, TRAINED_METHODS

    console = Console()
    names = TRAINED_METHODS if method == "all" else (METHODS.named(method),)
    stream = resolve(experiment, names[0], budget, seed, by_hand=True).data.stream(data, seed)
    options: dict[str, Any] = {"budget": budget, "trials": trials, "seed": seed, "space": space}
    options |= {"allowance": allowance, "data": data}
    plans = [plan_search(experiment, name, stream, **options) for name in names]
    title = name_of(experiment)
    if method == "all":
        folders = [(out or Path("runs")) / f"search-{title}-{name}" for name in names]
    else:
        folders = [out or Path("runs") / f"search-{title}-{names[0]}"]
    _Tuning(console, plans, folders, data, two_phase, record).run(jobs, threads, device, precision)


class _Tuning:
    """Searches of one or several methods on one experiment."""

    def __init__(
        self,
        console: Console,
        plans: Sequence[SearchPlan],
        folders: Sequence[Path],
        data: Path | None,
        two_phase: Sequence[str],
        record: Path | None,
    ) -> None:
        from clom.experiments.config import resolve

        self.console, self.plans, self.folders, self.data, self.record = console, plans, folders, data, record
        usual = plans[0].starts.usual
        others = {name: resolve(name, usual.method, usual.budget, usual.seed, by_hand=True).data for name in two_phase}
        for name, source in others.items():
            if not source.available(data):
                raise UserError(f"--two-phase {name}: its images are not here. 'clom list data' says where they go.")
        self.others = {name: source.stream(data, usual.seed) for name, source in others.items()}

    def run(self, jobs: int, threads: int, device: str, precision: str) -> None:
        from contextlib import ExitStack

        from clom import machine
        from clom.experiments.grid import Compute
        from clom.experiments.tuning.running import run_searches
        from clom.experiments.tuning.search import Search
        from clom.files import writing
        from clom.locks import Lock
        from clom.stopping import Stopped, StopRequest

        machine.tune_process(threads)
        with ExitStack() as held:
            searches = []
            for plan, folder in zip(self.plans, self.folders, strict=True):
                with writing(folder, "Repeat the command to continue."):
                    held.enter_context(Lock(folder, "searched"))
                    searches.append(Search(plan, folder))
            missing = [search for search in searches if len(search.done) < search.plan.trials]
            for search in searches:
                if search not in missing:
                    self._finish(search)
            display = TrialsDisplay(self.console, missing, self._finish)
            compute = Compute(self.data, threads, device, precision)
            try:
                with StopRequest() as stop, display:
                    failures = run_searches(missing, compute, jobs, display, stop)
            except KeyboardInterrupt as request:
                self.console.print("Stopped. The same command continues the search.", highlight=False)
                if isinstance(request, Stopped):
                    raise SystemExit(request.exit_code) from None
                raise
        if failures:
            raise UserError("\n".join([*failures.values(), "Repeat the command to retry."]))

    def _finish(self, search: Search) -> None:
        """Write and print the result of a finished search."""
        from clom.experiments.tuning.plans import transferred
        from clom.experiments.tuning.record import write_record
        from clom.files import write_json
        from clom.reporting.figures.search import draw_search

        others = [transferred(search.plan, name, stream) for name, stream in self.others.items()]
        record = write_record(search, others)
        picture = draw_search(record, search.folder)[1]
        self.console.print(trials_table(record))
        if self.record is not None:
            write_json(self.record / f"{record['search']}.json", record)
        self.console.print(
            f"Best: trial {record['best']}. Recipe: {search.folder / 'recipe.yaml'}   figure: {picture}",
            highlight=False,
            soft_wrap=True,
        )


class TrialsDisplay:
    """Progress of all trials: a bar in a terminal, a line per task elsewhere, with the time left."""

    def __init__(self, console: Console, searches: Sequence[Search], on_finished: Any = lambda search: None) -> None:
        self.console, self._on_finished = console, on_finished
        self._left = sum((search.plan.trials - len(search.done)) * search.plan.n_tasks for search in searches)
        self._done, self._total = 0, self._left
        self._started = time.monotonic()
        self._bar = progress_bar(console)
        self._bar_id = self._bar.add_task("starting", total=max(1, self._total)) if self._bar else None

    def __enter__(self) -> TrialsDisplay:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar:
            self._bar.stop()

    def task_done(self, trial: Trial, result: TaskResult) -> None:
        self._done += 1
        self._left -= 1
        evaluation = result.evaluation
        self._show(trial, f"task {evaluation.n_tasks}, CIL {100 * evaluation.preferred.cil:.1f}")

    def trial_done(self, trial: Trial, outcome: Outcome) -> None:
        search = trial.search
        self._left -= search.plan.n_tasks - len(trial.results)
        if outcome != "finished":
            self._show(trial, outcome)
        if len(search.done) >= search.plan.trials:
            self._on_finished(search)

    def _show(self, trial: Trial, what: str) -> None:
        plan = trial.search.plan
        left = (time.monotonic() - self._started) / max(1, self._done) * max(0, self._left)
        where = f"{plan.name}, trial {trial.number} of {plan.trials}: {what}"
        if self._bar and self._bar_id is not None:
            text = beside_bar(self.console, f"{duration(left)} left, {where}")
            self._bar.update(self._bar_id, completed=self._total - self._left, description=text)
        else:
            self.console.print(f"{where}; about {duration(left)} left", highlight=False, soft_wrap=True)


def trials_table(record: Mapping[str, Any]) -> Table:
    """All trials of a search: settings, CIL after each task in percent, work and state."""
    table = Table(title=f"{record['search']}: CIL in percent on held-out training images")
    table.add_column("trial", justify="right")
    table.add_column("settings")
    table.add_column("CIL after each task", justify="right")
    table.add_column("passes", justify="right")
    table.add_column("core min", justify="right")
    table.add_column("state")
    for trial in record["trials"]:
        table.add_row(
            str(trial["number"]),
            settings_text(record, trial),
            "  ".join(f"{100 * value:.1f}" for value in trial["cil"]),
            f"{trial['passes']:,.0f}",
            f"{trial['core_minutes']:.1f}",
            trial["state"],
            style="bold" if trial["number"] == record["best"] else None,
        )
    return table


def settings_text(record: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    """What a trial chose, in a few words: factors as x2.5."""
    words = [trial["start"], f"length {trial['length']:g}"]
    for name, value in trial["choices"].items():
        factor = "times" in record["space"][name]
        if not factor or value != 1.0:
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            words.append(f"{name} {'x' if factor else ''}{text}")
    return ", ".join(words)
