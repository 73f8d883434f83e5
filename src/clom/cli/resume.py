"""`clom resume`: continue an interrupted run.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.options import Compile, DataFolder, Device, Precision, RunFolder, Track


def resume_command(
    run: RunFolder,
    *,
    data: DataFolder | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    checkpoint_every: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    device: Device | None = None,
    precision: Precision | None = None,
    compile: Compile | None = None,
    track: Track = (),
) -> None:
    """Resume an interrupted run; on the same machine the result equals that of an uninterrupted run.

    Parameters
    ----------
    run
        The run folder written by `clom run`.
    data
        Folder with the data sets; by default the one the run was started with.
    threads
        Number of CPU threads; by default as before, because bit-identical results depend on it.
    checkpoint_every
        Seconds between checkpoints within a task; by default 10.
    track
        Write curves to tensorboard, wandb or mlflow (repeatable); by default as before.
    """
    from clom.cli.run import show_run
    from clom.experiments.provenance import recorded
    from clom.experiments.run import read_config
    from clom.reporting.tracking.tracker import check_trackers, trackers_of

    config, before = read_config(run), recorded(run)
    data = data or (Path(before["data"]) if before.get("data") else None)
    deterministic = bool(before.get("deterministic", False))
    threads = threads or before.get("threads")
    device, precision = device or before.get("device", "auto"), precision or before.get("precision", "auto")
    compiled = before.get("compile", False) if compile is None else compile
    check_trackers(track)
    how = deterministic, checkpoint_every, device, precision, compiled, None, track or trackers_of(run)
    show_run(Console(), config, run, data, threads, *how)
