"""`clom doctor`: this machine's hardware and estimated durations.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from clom.cli.console import Console
from clom.cli.options import Device


def doctor_command(*experiments: str, data: Path | None = None, device: Device = "auto") -> None:
    """Show cores, memory, GPU and available data sets, and the estimated duration of each experiment with CLOM.

    Parameters
    ----------
    experiments
        Names or paths of YAML files; by default all built-in and installed experiments.
    data
        Folder with the data sets; by default CLOM_DATA or the download cache.
    """
    from clom import machine
    from clom.cli.display import duration
    from clom.data import catalog
    from clom.experiments.catalogue import BUDGETS, experiment_names, size_of
    from clom.experiments.config import resolve
    from clom.experiments.estimate import Rates, estimate_seconds, measure, multiply_adds, work_of

    console = Console()
    machine.tune_process()
    chosen = machine.choose_device(device)
    about = machine.describe()
    console.print(
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB of memory, "
        f"GPU: {about['gpu'] or 'none'}\nPython {about['python']}, "
        + ", ".join(f"{name} {version}" for name, version in about["packages"].items()),
        highlight=False,
        soft_wrap=True,
    )
    places = ", ".join(str(place) for place in catalog.search_path(data))
    console.print(f"Data set search path: {places}", highlight=False, soft_wrap=True)
    table = Table("experiment", "data", *(f"budget {budget}" for budget in BUDGETS))
    table.caption = (
        f"Estimates for {chosen} at the current load, extrapolated from a few timed CLOM training steps per network."
    )
    gpu = chosen.type != "cpu"
    if not gpu:
        table.caption += " No GPU found: the paper budget is also given in multiply-adds."
    timed: dict[str, Rates] = {}
    for name in experiments or experiment_names():
        times = []
        here = resolve(name).data.available(data)
        for budget in BUDGETS:
            config = resolve(name, "clom", budget)
            if not here and size_of(config.experiment) is None:
                times.append("?")
                continue
            work = work_of(config, data)
            key = f"{config.net}{work.image_shape}"
            if key not in timed:
                timed[key] = measure(config, work.image_shape, chosen)
            amount = f" ({multiply_adds(config, work):.0e} multiply-adds)" if budget == "paper" and not gpu else ""
            times.append(duration(estimate_seconds(config, work, timed[key])) + amount)
        table.add_row(resolve(name).experiment, "found" if here else "missing", *times)
    console.print(table)
