"""`clom run`: one experiment, one method, one seed.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.checks import check_run_request
from clom.cli.console import Console
from clom.cli.options import Allowance, Assignments, Compile, DataFolder, Device, Precision, SettingsFile, Track
from clom.launch import read_launch

if TYPE_CHECKING:
    from clom.experiments.allowance import Allowed
    from clom.experiments.config import RunConfig
    from clom.experiments.task_result import TaskResult


def run_command(
    experiment: str | None = None,
    *,
    method: str = "clom",
    budget: str = "cpu",
    seed: int = 0,
    data: DataFolder | None = None,
    out: Path | None = None,
    recipe: SettingsFile | None = None,
    config: SettingsFile | None = None,
    set: Assignments = (),
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    deterministic: Annotated[bool, Parameter(negative=())] = False,
    checkpoint_every: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: Compile = False,
    allowance: Allowance | None = None,
    track: Track = (),
) -> None:
    """Run an experiment: learn its tasks in sequence and evaluate after each.

    All output goes to one folder. Repeating the command, or `clom resume` with the folder, continues an interrupted
    run, even within a task.

    Parameters
    ----------
    experiment
        For example mnist-5t; `clom list` shows all. For your own, the path of its YAML file.
    method
        For example clom, hat; `clom list methods` shows all. For your own, my_file.py:Mine or package.module:Mine.
    budget
        smoke (seconds), cpu (minutes) or paper (the paper's settings).
    seed
        Random seed.
    out
        Folder for this run; by default `runs/<experiment>-<method>-<budget>-s<seed>`.
    recipe
        YAML file with the method's settings: plain, or by experiment and budget as in the built-in recipes.
    config
        YAML file with settings, as `clom run` writes them under `settings`.
    set
        Override one setting, for example --set learning.plan.epochs=10 (repeatable).
    threads
        Number of CPU threads; by default one per core.
    deterministic
        Use deterministic algorithms only; fail where PyTorch has none.
    checkpoint_every
        Seconds between checkpoints within a task; by default 10.
    allowance
        Training passes that the run may use, a number or `experiment` (the one in the experiment's file): a run that
        would use more does not start. By default, or with `none`, nothing is checked.
    """
    from clom.reporting.tracking.tracker import check_trackers

    experiment = check_run_request(experiment, method, budget, out)
    check_trackers(track)
    from clom.experiments.allowance import parse_allowance
    from clom.experiments.config import parse_overrides, read_settings_file, resolve
    from clom.experiments.defaults import read_recipe_file
    from clom.methods.registry import METHODS
    from clom.settings import flatten

    overrides = {**(flatten(read_settings_file(config, experiment)) if config else {}), **parse_overrides(set)}
    own_recipe = read_recipe_file(recipe) if recipe else {}
    resolved = resolve(experiment, METHODS.named(method), budget, seed, overrides, own_recipe)
    changes = {**overrides, **({"--recipe": own_recipe} if own_recipe else {})}
    suffix = f"-{hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:6]}" if changes else ""
    folder = out or Path("runs") / (resolved.run_name + suffix)
    allowed = parse_allowance(allowance, experiment, resolved.budget)
    how = deterministic, checkpoint_every, device, precision, compile, allowed, track
    show_run(Console(), resolved, folder, data, threads, *how)


def show_run(
    console: Console,
    config: RunConfig,
    folder: Path,
    data: Path | None,
    threads: int | None,
    deterministic: bool = False,
    checkpoint_every: float | None = None,
    device: str = "auto",
    precision: str = "auto",
    compile: bool = False,
    allowance: Allowed | None = None,
    track: Sequence[str] = (),
) -> None:
    """Execute a run with a progress display, and print its results."""
    from clom import machine
    from clom.cli.display import Display, result_table, summary_lines
    from clom.experiments.distributed_run import load_stream, working_folder
    from clom.experiments.run import execute, is_finished
    from clom.reporting.figures.run_overview import draw_run
    from clom.reporting.tracking.run_curves import track_task
    from clom.reporting.tracking.tracker import TrackedRun, open_trackers
    from clom.settings import flatten
    from clom.stopping import Stopped, StopRequest
    from clom.storage.checkpoints import SECONDS

    launch, passes = read_launch(), None if allowance is None else allowance.passes
    machine.tune_process(threads or max(1, machine.cores() // launch.local_size), deterministic)
    nothing_to_do = is_finished(folder)
    every = SECONDS if checkpoint_every is None else checkpoint_every
    how: dict[str, Any] = {"data": data, "device": device, "precision": precision, "compile": compile}
    try:
        with working_folder(launch, config, folder) as place:
            stream = load_stream(launch, config, data)
            if allowance is not None and not nothing_to_do:
                allowance.check(config, stream, data)
            if not launch.is_main:
                execute(config, stream, place, every=math.inf, **how)
                return
            for note in stream.notes:
                console.print(note, highlight=False, soft_wrap=True)
            trackers = open_trackers(track, TrackedRun(folder.name, folder, flatten(config.model_dump(mode="json"))))

            def task_done(task: TaskResult, n_tasks: int) -> None:
                display.task_done(task, n_tasks)
                if track:
                    track_task(trackers, task, place)

            with StopRequest() as stop, Display(console, len(stream)) as display, closing(trackers):
                how |= {"every": every, "stop": stop, "allowance": passes, "on_values": trackers.scalars}
                result = execute(config, stream, place, display.step, task_done, **how)
    except KeyboardInterrupt as request:
        console.print(
            f"Stopped. Progress is saved in {folder}; continue with the same command or 'clom resume {folder}'.",
            highlight=False,
            soft_wrap=True,
        )
        if isinstance(request, Stopped):
            raise SystemExit(request.exit_code) from None
        raise
    if nothing_to_do:
        console.print(
            f"{folder} already contains this run, finished. Remove it or choose another --out to run it again.",
            soft_wrap=True,
        )
    console.print(result_table(result))
    for line in summary_lines(result.summary):
        console.print(line, highlight=False)
    picture = draw_run(result)[1]
    console.print(f"Figure: {picture}   all other files: {folder}", highlight=False, soft_wrap=True)
