"""`clom list`: what there is.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from clom.errors import UserError

if TYPE_CHECKING:
    from clom.plugins import Registry


def list_command(what: Literal["all", "experiments", "methods", "scores", "predictors", "budgets"] = "all", /) -> None:
    """Show the experiments, the methods, the OOD scores, the task predictors and the budgets.

    Parameters
    ----------
    what
        Only one of these lists.
    """
    tables = {
        "experiments": _experiments,
        "methods": _methods,
        "scores": _scores,
        "predictors": _predictors,
        "budgets": _budgets,
    }
    for make in tables.values() if what == "all" else [tables[what]]:
        Console().print(make())


def _experiments() -> Table:
    from clom.experiments.catalogue import experiment_names, read_experiment

    table = Table("experiment", "what is learned")
    for name in experiment_names():
        table.add_row(name, read_experiment(name).title)
    return table


def _methods() -> Table:
    from clom.methods.registry import BUILT_IN, METHODS, method_info
    from clom.reporting.paper.published import paper_experiments

    rows = []
    for name in METHODS.names():
        try:
            info = method_info(name)
            rows.append(
                (name, info.title, info.keeps, _printed(paper_experiments(info.short)) if name in BUILT_IN else "-")
            )
        except UserError as problem:  # of a package that is installed, but broken
            rows.append((name, str(problem), "-", "-"))
    return _with_origin(METHODS, ["method", "what it is", "kept between tasks", "numbers in the paper"], rows)


def _scores() -> Table:
    from clom.ood.registry import SCORES

    return _described(SCORES, "OOD score")


def _predictors() -> Table:
    from clom.ood.registry import PREDICTORS

    return _described(PREDICTORS, "task predictor")


def _described(registry: Registry[Any], heading: str) -> Table:
    from clom.ood.registry import description

    rows = []
    for name in registry.names():
        try:
            rows.append((name, description(registry, name)))
        except UserError as problem:  # of a package that is installed, but broken
            rows.append((name, str(problem)))
    return _with_origin(registry, [heading, "what it is"], rows)


def _budgets() -> Table:
    from clom.experiments.catalogue import BUDGETS

    table = Table("budget", "how much work")
    for budget, text in BUDGETS.items():
        table.add_row(budget, text)
    return table


def _with_origin(registry: Registry[Any], columns: list[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Where each comes from, as soon as one of them is not built in."""
    from clom.plugins import BUILT_IN

    origins = [registry.entry(row[0]).origin for row in rows]
    if all(origin == BUILT_IN for origin in origins):
        origins = []
    table = Table(*columns, *(["from"] if origins else []))
    for number, row in enumerate(rows):
        table.add_row(*row, *origins[number : number + 1])
    return table


def _printed(experiments: list[str]) -> str:
    return "all six" if len(experiments) == 6 else ", ".join(experiments) or "-"
