"""`clom doctor`: what this machine can do."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table


def doctor_command(*, data: Path | None = None) -> None:
    """Show cores, memory, GPU and data sets found, and how long each experiment would take with CLOM.

    Parameters
    ----------
    data
        Folder with the data sets; otherwise CLOM_DATA or the download cache.
    """
    from clom import machine
    from clom.cli.display import duration
    from clom.data import catalog
    from clom.experiments.catalogue import BUDGETS, experiment_names, read_experiment
    from clom.experiments.config import resolve
    from clom.experiments.estimate import Rates, estimate_seconds, measure

    console = Console()
    machine.tune_process()
    about = machine.describe()
    console.print(
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB of memory, "
        f"GPU: {about['gpu'] or 'none'}\nPython {about['python']}, "
        + ", ".join(f"{name} {version}" for name, version in about["packages"].items()),
        highlight=False,
        soft_wrap=True,
    )
    places = ", ".join(str(place) for place in catalog.search_path(data))
    console.print(f"Data sets are looked for in: {places}", highlight=False, soft_wrap=True)
    table = Table("experiment", "data", *(f"budget {budget}" for budget in BUDGETS))
    table.caption = (
        "About, at the present load: a few real steps of CLOM were timed for each network, the rest is counted."
    )
    timed: dict[str, Rates] = {}
    for name in experiment_names():
        times = []
        for budget in BUDGETS:
            config = resolve(name, "clom", budget)
            key = f"{config.net}{read_experiment(name)['size']['pixels']}"
            if key not in timed:
                timed[key] = measure(config)
            times.append(duration(estimate_seconds(config, timed[key])))
        found = "found" if resolve(name).data.available(data) else "missing"
        table.add_row(name, found, *times)
    console.print(table)
