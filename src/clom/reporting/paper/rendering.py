"""A table as text: Markdown, LaTeX (booktabs, multirow) or CSV. A dash where nothing was measured.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from itertools import groupby

from clom.reporting.paper.numbers import Number
from clom.reporting.paper.table import SEEDS_FOR_BOLD, Column, Entry, Table

DASH = "–"
EXPLANATION = (
    "Ours: mean ± standard deviation over seeds; in parentheses: the paper's. Marked is the best of a column among "
    f"numbers from at least {SEEDS_FOR_BOLD} seeds; others are never marked."
)


def number_text(number: Number | None, digits: int = 1) -> str:
    if number is None:
        return DASH
    spread = "" if number.std is None else f" ± {number.std:.{digits}f}"
    return f"{number.mean:.{digits}f}{spread}"


def entry_text(entry: Entry, digits: int, mark: Callable[[str], str] | None = None) -> str:
    """Ours, then the paper's in parentheses; `mark` formats ours."""
    ours = number_text(entry.ours, digits)
    theirs = "" if entry.paper is None else f" ({entry.paper.mean:.{digits}f})"
    return (mark(ours) if mark else ours) + theirs


def to_markdown(table: Table) -> str:
    """The table and its notes, without its title."""
    heads = [f"{column.group} {column.name}".strip() for column in table.columns]
    rows = [[table.heading, *heads], ["---", *("--:" for _ in heads)]]
    for number, line in enumerate(table.lines):
        if table.opens_group(number):
            rows.append([f"*{line.group}*", *("" for _ in heads)])
        cells = [
            entry_text(entry, table.columns[place].digits, _bold if table.is_best(number, place) else None)
            for place, entry in enumerate(line.entries)
        ]
        rows.append([line.label, *cells])
    notes = "".join(f"{note}\n" for note in (EXPLANATION, *table.notes))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + notes


def _bold(text: str) -> str:
    return f"**{text}**"


def to_latex(table: Table) -> str:
    """A `table*` for documents that load booktabs and multirow."""
    lines = [r"% needs \usepackage{booktabs,multirow}", r"\begin{table*}[t]", r"\centering"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule"]
    groups = [(name, len(list(columns))) for name, columns in groupby(table.columns, key=lambda column: column.group)]
    heads = " & ".join(_latex(column.name) for column in table.columns)
    if any(name for name, _ in groups):
        above = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_latex(name)}}}" for name, count in groups)
        lines += [rf"\multirow{{2}}{{*}}{{{_latex(table.heading)}}} & {above} \\", rf" & {heads} \\"]
    else:
        lines.append(rf"{_latex(table.heading)} & {heads} \\")
    lines.append(r"\midrule")
    for number, line in enumerate(table.lines):
        if table.opens_group(number):
            lines.append(rf"\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\emph{{{_latex(line.group)}}}}} \\")
        cells = [
            _latex_entry(entry, table.columns[place], table.is_best(number, place))
            for place, entry in enumerate(line.entries)
        ]
        lines.append(" & ".join([_latex(line.label), *cells]) + r" \\")
    caption = " ".join(_latex(text) for text in (f"{table.title}.", EXPLANATION, *table.notes))
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def _latex_entry(entry: Entry, column: Column, best: bool) -> str:
    if entry.ours is None:
        ours = "--"
    else:
        mean = f"{entry.ours.mean:.{column.digits}f}"
        ours = rf"\textbf{{{mean}}}" if best else mean
        ours += "" if entry.ours.std is None else rf"{{\scriptsize $\pm${entry.ours.std:.{column.digits}f}}}"
    return ours + ("" if entry.paper is None else rf" {{\scriptsize ({entry.paper.mean:.{column.digits}f})}}")


_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def to_csv(table: Table) -> str:
    """One line per number; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([table.heading, "group", "experiment", "measure", "mean", "std", "seeds", "paper", "paper_std"])
    for line in table.lines:
        for column, entry in zip(table.columns, line.entries, strict=True):
            ours, theirs = entry.ours or Number(float("nan")), entry.paper or Number(float("nan"))
            values = [ours.mean, ours.std, ours.seeds, theirs.mean, theirs.std]
            writer.writerow([line.label, line.group, *_csv_names(table, column), *map(_csv_value, values)])
    return out.getvalue()


def _csv_names(table: Table, column: Column) -> tuple[str, str]:
    """Experiment and measure; ungrouped columns are experiments of a table with a single measure."""
    return (column.group, column.name) if column.group else (column.name, table.title.partition(" ")[0].lower())


def _csv_value(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.5g}"


RENDERERS: Mapping[str, Callable[[Table], str]] = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}
