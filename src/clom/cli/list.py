"""`clom list`: what there is."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.table import Table


def list_command(what: Literal["all", "experiments", "methods", "budgets"] = "all", /) -> None:
    """Show the experiments, the methods and the budgets.

    Parameters
    ----------
    what
        Only one of the three lists.
    """
    from clom.experiments.catalogue import BUDGETS, experiment_names, read_experiment
    from clom.methods.registry import METHODS
    from clom.reporting.paper.published import paper_experiments

    console = Console()
    if what in ("all", "experiments"):
        table = Table("experiment", "what is learned")
        for name in experiment_names():
            table.add_row(name, read_experiment(name)["title"])
        console.print(table)
    if what in ("all", "methods"):
        table = Table("method", "what it is", "kept between tasks", "numbers in the paper")
        for name, entry in METHODS.items():
            table.add_row(name, entry.title, entry.keeps, _printed(paper_experiments(entry.short)))
        console.print(table)
    if what in ("all", "budgets"):
        table = Table("budget", "how much work")
        for budget, text in BUDGETS.items():
            table.add_row(budget, text)
        console.print(table)


def _printed(experiments: list[str]) -> str:
    return "all six" if len(experiments) == 6 else ", ".join(experiments) or "-"
