"""`clom doctor`: this machine's hardware and estimated durations.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.table import Table

from clom.cli.console import Console
from clom.cli.options import DataFolder, Device, Json

if TYPE_CHECKING:
    import torch


def doctor_command(
    *experiments: str,
    data: DataFolder | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show cores, memory, GPU and available data sets, and the estimated duration of each experiment with CLOM.

    Parameters
    ----------
    experiments
        Names or paths of YAML files; by default all built-in and installed experiments.
    threads
        Number of CPU threads that a run would have; by default one per core.
    """
    from clom.experiments.catalogue import experiment_names, read_experiment

    for name in experiments:
        read_experiment(name)  # rejects unknown names before anything is measured
    from clom import machine
    from clom.data import catalog

    machine.tune_process(threads)
    chosen = machine.choose_device(device)
    about = machine.describe() | {
        "device": str(chosen),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "data_search_path": [str(place) for place in catalog.search_path(data)],
    }
    rows = _estimates(experiments or experiment_names(), data, chosen)
    if json:
        print(json_format.dumps(about | {"experiments": list(rows)}, indent=2))
        return
    console = Console()
    _show_machine(console, about)
    with console.status("Measuring ..."):
        table = _table(rows, about)
    console.print(table)
    if about["device"] == "cpu" and about["load"] > about["cores"] and about["threads"] > 1:
        console.print(
            f"The machine is busy (load {about['load']:.1f} on {about['cores']} cores): threads wait for each other, "
            "and fewer of them may be faster. Compare with --threads 1.",
            highlight=False,
            soft_wrap=True,
        )


def _estimates(names: Iterable[str], data: Path | None, device: torch.device) -> Iterator[dict[str, Any]]:
    """For each experiment: whether its data are here and, by budget, seconds and multiply-adds, None if unknown."""
    from clom.experiments.catalogue import BUDGETS, size_of
    from clom.experiments.config import resolve
    from clom.experiments.estimate import Rates, estimate_seconds, measure, multiply_adds, work_of

    timed: dict[str, Rates] = {}
    for name in names:
        usual = resolve(name)
        here = usual.data.available(data)
        row: dict[str, Any] = {"experiment": usual.experiment, "data": here, "seconds": {}, "multiply_adds": {}}
        for budget in BUDGETS:
            config = resolve(name, "clom", budget)
            if not here and size_of(config.experiment) is None:
                row["seconds"][budget] = row["multiply_adds"][budget] = None
                continue
            work = work_of(config, data)
            key = f"{config.net}{work.image_shape}"
            if key not in timed:
                timed[key] = measure(config, work.image_shape, device)
            row["seconds"][budget] = estimate_seconds(config, work, timed[key])
            row["multiply_adds"][budget] = multiply_adds(config, work)
        yield row


def _show_machine(console: Console, about: Mapping[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    lines = [
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB of memory, "
        f"GPU: {about['gpu'] or 'none'}",
        f"Python {about['python']}, {versions}",
        f"Data set search path: {', '.join(about['data_search_path'])}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _table(rows: Iterable[dict[str, Any]], about: Mapping[str, Any]) -> Table:
    from clom.cli.display import duration
    from clom.experiments.catalogue import BUDGETS

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("experiment", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for budget in BUDGETS:
        table.add_column(budget, justify="right", no_wrap=True)
    on_cpu = about["device"] == "cpu"
    if on_cpu:
        table.add_column("paper, multiply-adds", justify="right")
    for row in rows:
        times = ["?" if seconds is None else duration(seconds) for seconds in row["seconds"].values()]
        amount = row["multiply_adds"]["paper"]
        more = ["?" if amount is None else f"{amount:.0e}"] if on_cpu else []
        table.add_row(row["experiment"], "found" if row["data"] else "missing", *times, *more)
    threads = f" with {about['threads']} {'thread' if about['threads'] == 1 else 'threads'}" if on_cpu else ""
    table.caption = (
        f"Estimated durations with CLOM by budget, on {about['device']}{threads} at the machine's current load, from a "
        "second of training steps per network. Expect them to be right within a factor of two."
    )
    table.caption_justify = "left"
    return table
