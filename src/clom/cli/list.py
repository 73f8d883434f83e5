"""`clom list`: available experiments, methods and other components.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from clom.cli.console import Console
from clom.errors import UserError

if TYPE_CHECKING:
    from clom.plugins import Registry


What = Literal["all", "experiments", "methods", "networks", "datasets", "scores", "predictors", "budgets"]


def list_command(what: What = "all", /, *, long: bool = False) -> None:
    """List available experiments, methods, networks, data sets, OOD scores, task predictors and budgets.

    Entries of plug-ins and installed packages are shown with their origin.

    Parameters
    ----------
    what
        Show only this list.
    long
        Also show how each method differs from its publication.
    """
    tables = {
        "experiments": _experiments,
        "methods": _methods,
        "networks": _networks,
        "datasets": _datasets,
        "scores": _scores,
        "predictors": _predictors,
        "budgets": _budgets,
    }
    for make in tables.values() if what == "all" else [tables[what]]:
        Console().print(make())
    if long and what in ("all", "methods"):
        _print_deviations(Console())


def _print_deviations(console: Console) -> None:
    from clom.methods.deviations import COMMON
    from clom.methods.registry import METHODS, method_info

    console.print("How methods differ from their publications.")
    for heading, sentences in [("all", COMMON), *((name, method_info(name).deviations) for name in METHODS.names())]:
        if sentences:
            console.print(f"\n{heading}", *(f"- {sentence}" for sentence in sentences), sep="\n", highlight=False)


def _experiments() -> Table:
    from clom.experiments.catalogue import experiment_names, read_experiment

    rows, origins = list[tuple[str, ...]](), list[str]()
    for name in experiment_names():
        try:
            found = read_experiment(name)
            rows.append((name, found.title))
            origins.append(found.origin)
        except UserError as problem:  # a broken installed package
            rows.append((name, str(problem)))
            origins.append("an installed package")
    return _table(["experiment", "description"], rows, origins)


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
        except UserError as problem:  # a broken installed package
            rows.append((name, str(problem), "-", "-"))
    return _with_origin(METHODS, ["method", "description", "stored between tasks", "numbers in the paper"], rows)


def _networks() -> Table:
    from clom.nets.networks.registry import NETS

    return _described(NETS, "network")


def _datasets() -> Table:
    from clom.data.catalog import SETS

    return _described(SETS, "data set")


def _scores() -> Table:
    from clom.ood.registry import SCORES

    return _described(SCORES, "OOD score")


def _predictors() -> Table:
    from clom.ood.registry import PREDICTORS

    return _described(PREDICTORS, "task predictor")


def _described(registry: Registry[Any], heading: str) -> Table:
    rows = []
    for name in registry.names():
        try:
            rows.append((name, registry.description(name)))
        except UserError as problem:  # a broken installed package
            rows.append((name, str(problem)))
    return _with_origin(registry, [heading, "description"], rows)


def _budgets() -> Table:
    from clom.experiments.catalogue import BUDGETS

    table = Table("budget", "description")
    for budget, text in BUDGETS.items():
        table.add_row(budget, text)
    return table


def _with_origin(registry: Registry[Any], columns: list[str], rows: Sequence[tuple[str, ...]]) -> Table:
    return _table(columns, rows, [registry.entry(row[0]).origin for row in rows])


def _table(columns: list[str], rows: Sequence[tuple[str, ...]], origins: Sequence[str]) -> Table:
    """A table with an origin column unless everything is built in."""
    from clom.plugins import BUILT_IN

    if all(origin == BUILT_IN for origin in origins):
        origins = []
    table = Table(*columns, *(["from"] if origins else []))
    for number, row in enumerate(rows):
        table.add_row(*row, *origins[number : number + 1])
    return table


def _printed(experiments: list[str]) -> str:
    return "all six" if len(experiments) == 6 else ", ".join(experiments) or "-"
