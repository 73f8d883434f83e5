"""`clom list`: available experiments, methods and other components.

Tested by tests/cli/test_list.py.
"""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from clom.cli.console import Console
from clom.cli.options import Json
from clom.errors import UserError
from clom.untrusted_text import printable

if TYPE_CHECKING:
    from clom.plugins import Registry


What = Literal["all", "experiments", "methods", "networks", "datasets", "scores", "predictors", "budgets"]
Row = dict[str, Any]
_INSTALLED = "an installed package"


def list_command(
    what: What = "all", /, *, long: Annotated[bool, Parameter(negative=())] = False, json: Json = False
) -> None:
    """List available experiments, methods, networks, data sets, OOD scores, task predictors and budgets.

    Entries of plug-ins and installed packages are shown with their origin.

    Parameters
    ----------
    what
        Show only this list.
    long
        Show the whole descriptions, what each method stores, and how it differs from its publication.
    """
    chosen = list(ROWS) if what == "all" else [what]
    rows = {name: list(ROWS[name]()) for name in chosen}
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:  # a pipe has no width: nothing needs to be cut
        console = Console(width=10_000)
    for name in chosen:
        console.print(_table(name, rows[name], long))
    if long and "methods" in chosen:
        _print_deviations(console, rows["methods"])
    elif "methods" in chosen:
        console.print("--long shows what each method stores and how it differs from its publication.", highlight=False)


# --- rows: everything that is known ----------------------------------------------------------------------------------


def _experiments() -> Iterator[Row]:
    from clom.experiments.catalogue import experiment_names, read_experiment

    for name in experiment_names():
        try:
            found = read_experiment(name)
            yield {"name": name, "description": found.title, "from": found.origin}
        except UserError as problem:  # a broken installed package
            yield {"name": name, "description": str(problem), "from": _INSTALLED}


def _methods() -> Iterator[Row]:
    from clom.methods.registry import BUILT_IN, METHODS, method_info
    from clom.reporting.paper.published import paper_experiments

    for name in METHODS.names():
        origin = METHODS.entry(name).origin
        try:
            info = method_info(name)
        except UserError as problem:  # a broken installed package
            yield {"name": name, "description": str(problem), "from": origin}
            continue
        yield {
            "name": name,
            "description": info.title,
            "stores": info.keeps,
            "stores_samples": info.stores_samples if name in BUILT_IN else None,
            "numbers_in_paper": paper_experiments(info.short) if name in BUILT_IN else [],
            "deviations": list(info.deviations),
            "from": origin,
        }


def _networks() -> Iterator[Row]:
    from clom.nets.networks.registry import NETS

    return _described(NETS)


def _datasets() -> Iterator[Row]:
    from clom.data.catalog import SETS

    return _described(SETS)


def _scores() -> Iterator[Row]:
    from clom.ood.registry import SCORES

    return _described(SCORES)


def _predictors() -> Iterator[Row]:
    from clom.ood.registry import PREDICTORS

    return _described(PREDICTORS)


def _described(registry: Registry[Any]) -> Iterator[Row]:
    for name in registry.names():
        try:
            description = registry.description(name)
        except UserError as problem:  # a broken installed package
            description = str(problem)
        yield {"name": name, "description": description, "from": registry.entry(name).origin}


def _budgets() -> Iterator[Row]:
    from clom.experiments.catalogue import BUDGETS
    from clom.plugins import BUILT_IN

    for budget, text in BUDGETS.items():
        yield {"name": budget, "description": text, "from": BUILT_IN}


ROWS: Mapping[str, Callable[[], Iterable[Row]]] = {
    "experiments": _experiments,
    "methods": _methods,
    "networks": _networks,
    "datasets": _datasets,
    "scores": _scores,
    "predictors": _predictors,
    "budgets": _budgets,
}
_HEADINGS = {
    "experiments": "experiment",
    "methods": "method",
    "networks": "network",
    "datasets": "data set",
    "scores": "OOD score",
    "predictors": "task predictor",
    "budgets": "budget",
}


# --- tables: a line for each, or everything ---------------------------------------------------------------------------


def _table(kind: str, rows: Sequence[Row], long: bool) -> Table:
    """A name that must be typed is never cut. Without `long`, descriptions are cut at the terminal's width."""
    from clom.plugins import BUILT_IN

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), show_lines=long and kind == "methods")
    table.add_column(_HEADINGS[kind], no_wrap=True)
    columns: dict[str, Callable[[Row], str]] = _method_columns(long) if kind == "methods" else {}
    columns["description"] = lambda row: row["description"]
    if any(row["from"] != BUILT_IN for row in rows):
        columns["from"] = lambda row: row["from"]
    for name in columns:
        table.add_column(name, no_wrap=name == "samples")
    cut: dict[str, Any] = {} if long else {"no_wrap": True, "overflow": "ellipsis"}
    for row in rows:
        table.add_row(row["name"], *(Text(printable(text(row)), **cut) for text in columns.values()))
    return table


def _method_columns(long: bool) -> dict[str, Callable[[Row], str]]:
    if not long:
        return {"samples": lambda row: {True: "stored", False: "none"}.get(row.get("stores_samples"), "?")}
    return {
        "stored between tasks": lambda row: row.get("stores", "-"),
        "numbers in the paper": lambda row: _printed(row.get("numbers_in_paper", [])),
    }


def _print_deviations(console: Console, methods: Sequence[Row]) -> None:
    from clom.methods.deviations import COMMON

    console.print("\nHow methods differ from their publications.")
    for heading, sentences in [("all", COMMON), *((row["name"], row.get("deviations", [])) for row in methods)]:
        if sentences:
            console.print(f"\n{heading}", *(f"- {sentence}" for sentence in sentences), sep="\n", highlight=False)


def _printed(experiments: Sequence[str]) -> str:
    return "all six" if len(experiments) == 6 else ", ".join(experiments) or "-"
