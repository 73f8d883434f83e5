"""`clom grid`: a list of runs, executed in sequence or in parallel.

Tested by tests/experiments/test_grid.py.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.learn import say
from clom.cli.options import Allowance, Compile, DataFolder, Device, Precision, SettingsFile
from clom.errors import UserError
from clom.extras import require

if TYPE_CHECKING:
    from clom.experiments.grid import Cell, Outcome

_SECONDS_BETWEEN_LOOKS = 0.2


def grid_command(
    grid: SettingsFile,
    *,
    out: Path = Path("runs"),
    data: DataFolder | None = None,
    ledger: Path | None = None,
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    cluster: Literal["none", "slurm", "local"] = "none",
    dry_run: bool = False,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: Compile = False,
    allowance: Allowance | None = None,
) -> None:
    """Execute all runs listed in a file, skipping finished ones; repeat the command to continue after an interruption.

    Parameters
    ----------
    grid
        YAML file: experiments, methods (or all), budget, seeds, variants; several groups under `blocks`.
    out
        Folder for the runs.
    data
        Folder with the data sets; by default CLOM_DATA or the download cache.
    ledger
        Ledger file to add every finished run to, for example results/ledger.jsonl.
    jobs
        Number of parallel runs.
    threads
        CPU threads per run; by default the cores divided by the jobs.
    cluster
        Submit the unfinished runs to SLURM with submitit, or to submitit's local executor.
    dry_run
        Only list the runs.
    allowance
        Training passes that each run may use: a number, `experiment` or `none`. A run that would use more does not
        start. By default the allowance in the experiment's file, if it has one.
    """
    from clom.experiments.grid import cells, read_grid

    console = Console()
    todo = cells(read_grid(grid), out)
    finished = [cell for cell in todo if cell.state == "finished"]
    console.print(f"{len(todo)} runs, {len(finished)} of them finished.", highlight=False)
    _record(finished, ledger)
    remaining = [cell for cell in todo if cell.state != "finished"]
    if dry_run:
        for cell in todo:
            console.print(f"{cell.state:9} {cell.name}", highlight=False)
        return
    if cluster != "none":
        _submit(console, remaining, data, out, cluster, device, precision, compile, allowance)
    else:
        _work(console, remaining, data, ledger, jobs, threads, device, precision, compile, allowance)
    failed = [cell for cell in todo if cell.failure]
    for cell in failed:
        console.print(f"failed: {cell.name}: {cell.failure}", highlight=False, soft_wrap=True)
    if failed:
        raise UserError(f"{len(failed)} of {len(todo)} runs failed. Repeat the command to retry them.")


def _work(
    console: Console,
    remaining: list[Cell],
    data: Path | None,
    ledger: Path | None,
    jobs: int,
    threads: int | None,
    device: str,
    precision: str,
    compile: bool,
    allowance: str | None,
) -> None:
    from clom import machine
    from clom.stopping import Stopped, StopRequest

    threads = threads or max(1, machine.cores() // jobs)
    if remaining:
        say(console, f"'clom watch {remaining[0].folder}' in another terminal shows the first one.")
    started, n_done, waited_for = time.monotonic(), 0, set[str]()
    pool = ThreadPoolExecutor(jobs)

    def start(cell: Cell) -> Future[Outcome]:
        return pool.submit(cell.run, data, threads, device, precision, compile, allowance, stop)

    with StopRequest() as stop:
        running = {start(cell): cell for cell in remaining}
        try:
            while running:
                for future in wait(running, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED).done:
                    cell = running.pop(future)
                    outcome = future.result()
                    if outcome == "busy" and not stop.requested:
                        running[start(cell)] = cell  # after the others
                        if cell.name not in waited_for:
                            say(console, f"{cell.name} is being run by another process: waiting for it.")
                            waited_for.add(cell.name)
                    elif outcome in ("finished", "failed"):
                        n_done += 1
                        left = (time.monotonic() - started) / n_done * len(running) / 60
                        count, state = f"{n_done}/{n_done + len(running)}", outcome if outcome != "failed" else "FAILED"
                        say(console, f"{count}  {state} {cell.name}; about {left:.0f} min left")
                        if outcome == "finished":
                            _record([cell], ledger)
                if stop.requested:  # those that have not begun
                    running = {future: cell for future, cell in running.items() if not future.cancel()}
        finally:
            if running:
                stop.number = stop.number or signal.SIGTERM  # after an error the other runs have to stop as well
            pool.shutdown(cancel_futures=True)
    if stop.number is not None:
        say(console, "Stopped. Progress is saved; repeat the command to continue.")
        raise SystemExit(Stopped(stop.number).exit_code)


def _record(finished: list[Cell], ledger: Path | None) -> None:
    from clom.experiments.ledger import Row, add

    if ledger is not None and finished:
        add(ledger, [Row.of_run(cell.folder) for cell in finished])


def _submit(
    console: Console,
    remaining: list[Cell],
    data: Path | None,
    out: Path,
    cluster: str,
    device: str,
    precision: str,
    compile: bool,
    allowance: str | None,
) -> None:
    """Submit one job per run; repeat the command after they finish to fill the ledger."""
    require("slurm", "--cluster")
    from submitit import AutoExecutor

    from clom.experiments.grid import execute_command

    executor = AutoExecutor(folder=out / "jobs", cluster=cluster)
    gpus = {"gpus_per_node": 1} if device.startswith("cuda") else {}
    executor.update_parameters(name="clom", timeout_min=24 * 60, cpus_per_task=2, **gpus)
    with executor.batch():
        commands = [
            (cell.command(data, None, device, precision, compile, allowance), cell.folder) for cell in remaining
        ]
        jobs = [executor.submit(execute_command, *command) for command in commands]
    console.print(f"Submitted {len(jobs)} jobs; their logs are in {out / 'jobs'}.", highlight=False, soft_wrap=True)
    if cluster == "local":
        for job in jobs:
            job.result()
