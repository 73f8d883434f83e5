"""`clom table`: the paper's tables from the ledger.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.measure import Measurement
from rich.table import Table as Shown
from rich.text import Text

from clom.cli.console import Console
from clom.cli.options import Json

if TYPE_CHECKING:
    from clom.reporting.paper.table import Table

_USUAL_LEDGER = Path("results/ledger.jsonl")


def table_command(
    name: Literal[
        "main", "average-incremental", "parameters", "forgetting", "ood", "memory", "scale", "augmentation"
    ] = "main",
    /,
    *,
    ledger: Path | None = None,
    budget: str = "cpu",
    experiment: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    only: Literal["runs", "paper"] | None = None,
    format: Literal["console", "markdown", "latex", "csv"] = "console",
    json: Json = False,
) -> None:
    """Show one of the paper's tables, filled from the ledger, with the paper's numbers in parentheses.

    Parameters
    ----------
    name
        Which table.
    ledger
        The ledger file; by default results/ledger.jsonl. Where there is none, the paper's numbers are shown alone.
    budget
        Use only runs with this budget: smoke, cpu or paper.
    experiment
        Only this experiment (repeatable). By default the paper's and all others in the ledger.
    only
        Only the rows with numbers of recorded runs, or only those with numbers in the paper.
    format
        console, markdown, latex or csv.
    """
    from clom.experiments.ledger import read
    from clom.reporting.paper.rendering import EXPLANATION, RENDERERS
    from clom.reporting.paper.tables import check_rows, make_table, only_rows_with

    rows = read(ledger or _USUAL_LEDGER)
    if ledger is not None:
        check_rows(rows, ledger)
    table = only_rows_with(only, make_table(name, rows, budget, experiment))
    if not rows:
        print(f"clom: {_USUAL_LEDGER} holds no runs; these are the paper's numbers.", file=sys.stderr)
    if json:
        print(json_format.dumps(as_json(table), indent=2))
        return
    if format != "console":
        print(RENDERERS[format](table), end="")
        return
    console = Console()
    console.print(table.title, style="bold", highlight=False)
    for part in fitting(table, console):
        console.print(part)
    for note in (EXPLANATION, *table.notes):
        console.print(note, highlight=False)


def as_json(table: Table) -> dict[str, Any]:
    """The numbers of the table, ours and the paper's, by line and column."""
    return {
        "title": table.title,
        "columns": [{"group": column.group, "name": column.name} for column in table.columns],
        "lines": [
            {
                "label": line.label,
                "group": line.group,
                "entries": [dataclasses.asdict(entry) for entry in line.entries],
            }
            for line in table.lines
        ],
        "notes": list(table.notes),
    }


def fitting(table: Table, console: Console) -> list[Shown]:
    """Split the table by columns into parts that fit the width of the console."""
    numbered = list(enumerate(table.columns))
    groups = [
        [place for place, _ in columns] for _, columns in groupby(numbered, key=lambda item: item[1].group or item[0])
    ]
    unlimited = console.options.update(max_width=10_000)
    parts: list[list[int]] = []
    for group in groups:
        wider = [*parts[-1], *group] if parts else group
        if parts and Measurement.get(console, unlimited, _shown(table, wider)).maximum <= console.width:
            parts[-1] = wider
        else:
            parts.append(group)
    return [_shown(table, part) for part in parts]


def _shown(table: Table, places: list[int]) -> Shown:
    from clom.reporting.paper.rendering import entry_text

    shown = Shown()
    shown.add_column(table.heading, no_wrap=True)
    for place in places:
        column = table.columns[place]
        shown.add_column(f"{column.group}\n{column.name}".strip(), justify="right")
    for number, line in enumerate(table.lines):
        if table.opens_group(number):
            shown.add_section()
            shown.add_row(Text(line.group, style="italic"))
        cells = []
        for place in places:
            text = entry_text(line.entries[place], table.columns[place].digits)
            best = table.is_best(number, place)
            ours = text.partition(" (")[0]
            # The asterisk marks the best value where bold is not shown.
            cells.append(Text.assemble((f"{ours}*" if best else ours, "bold" if best else ""), text[len(ours) :]))
        shown.add_row(line.label, *cells)
    return shown
