"""The paper's tables, filled from the ledger, with the paper's numbers next to ours.

| table | of the paper | rows | columns |
|---|---|---|---|
| `main` | Table 1 | methods | TIL and CIL of each experiment after its last task |
| `ood` | Table 2 | systems with other OOD detectors | AUC, TaskDR, TIL, CIL |
| `memory` | Table 3, left | stored samples per class | CIL |
| `scale` | Table 3, right | s of the hard attention | forgetting, AUC, CIL |
| `augmentation` | Table 4 | augmentations used | TIL and CIL without and with rotation |
| `average-incremental` | appendix | methods | TIL and CIL averaged over all steps |
| `parameters` | appendix | methods | millions of parameters |
| `forgetting` | Fig. 2 | methods | TIL lost on earlier tasks |

Only runs of the unchanged recipe count, except in the ablations, which count runs that differ only in the setting in
question. What was not measured stays empty.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from clom.errors import UserError, unknown
from clom.experiments.catalogue import BUDGETS, experiment_names
from clom.experiments.ledger import Row
from clom.methods.registry import method_label
from clom.reporting.paper.ablations import augmentation_table, memory_table, scale_table
from clom.reporting.paper.groups import by_group, group_of
from clom.reporting.paper.numbers import (
    EXPERIMENTS,
    REFERENCES,
    Number,
    Results,
    experiment_label,
    method_order,
    paper_has,
    paper_number,
)
from clom.reporting.paper.table import Column, Entry, Line, Table, notes_of, protocol_notes


def make_table(name: str, rows: Iterable[Row], budget: str = "cpu", experiments: Sequence[str] = ()) -> Table:
    """One of the paper's tables; by default of the paper's experiments and all others in the ledger."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    rows = list(rows)
    check_experiments(experiments, rows)
    return _without_empty_lines(TABLES[name](Results(rows, budget), list(experiments)))


def _without_empty_lines(table: Table) -> Table:
    """Drop unmeasured lines if the paper has no numbers for these experiments."""
    if any(entry.paper for line in table.lines for entry in line.entries):
        return table
    return replace(table, lines=tuple(line for line in table.lines if any(entry.ours for entry in line.entries)))


def only_rows_with(which: Literal["runs", "paper"] | None, table: Table) -> Table:
    """The rows with a number of ours, or of the paper's; all of them for None."""
    if which is None:
        return table
    side = operator.attrgetter("ours" if which == "runs" else "paper")
    lines = tuple(line for line in table.lines if any(side(entry) for entry in line.entries))
    if not lines:
        whose = "of recorded runs" if which == "runs" else "of the paper"
        raise UserError(f"No row of this table has a number {whose}: leave out --only {which}.")
    return replace(table, lines=lines)


def check_experiments(wanted: Iterable[str], rows: Iterable[Row]) -> None:
    """Raise for an experiment that is neither built in nor in the ledger."""
    known = {*experiment_names(), *(row.experiment for row in rows)}
    for experiment in wanted:
        if experiment not in known:
            raise unknown("experiment", experiment, known)


def _main(results: Results, chosen: list[str]) -> Table:
    columns = chosen or _experiments(results, list(EXPERIMENTS))
    measures = ("til", "cil")
    methods = _methods(results, columns, "final_accuracy", "til")
    lines = []
    for method in methods:
        entries = [
            Entry(
                results.number(experiment, method, measure), paper_number("final_accuracy", experiment, method, measure)
            )
            for experiment in columns
            for measure in measures
        ]
        entries += [_average(results, method, measure) for measure in measures if not chosen]
        lines.append(_line(method, entries))
    groups = [*map(experiment_label, columns), *(() if chosen else ("Average",))]
    return Table(
        f"Accuracy after the last task in percent, budget {results.budget}",
        "method",
        tuple(Column(group, name) for group in groups for name in ("TIL", "CIL")),
        tuple(lines),
        notes_of(results, columns, _runs(results, columns, methods))
        + (() if chosen else ("Average: over the paper's six experiments, if all six were run.",)),
    )


def _average(results: Results, method: str, measure: str) -> Entry:
    """The mean over the paper's six experiments, with the fewest seeds of them; None unless all six were run."""
    numbers = [results.number(experiment, method, measure) for experiment in EXPERIMENTS]
    ours = [number for number in numbers if number is not None]
    complete = len(ours) == len(EXPERIMENTS)
    mean, seeds = sum(number.mean for number in ours) / len(EXPERIMENTS), [number.seeds or 0 for number in ours]
    return Entry(
        Number(mean, seeds=min(seeds)) if complete else None,
        paper_number("final_accuracy", "average", method, measure),
    )


def _average_incremental(results: Results, chosen: list[str]) -> Table:
    columns, source = chosen or _experiments(results, list(EXPERIMENTS)), "average_incremental_accuracy"
    methods = _methods(results, columns, source, "average_incremental_til")
    lines = [
        _line(
            method,
            (
                Entry(
                    results.number(experiment, method, f"average_incremental_{measure}"),
                    paper_number(source, experiment, method, measure),
                )
                for experiment in columns
                for measure in ("til", "cil")
            ),
        )
        for method in methods
    ]
    return Table(
        f"Average incremental accuracy in percent, budget {results.budget}",
        "method",
        tuple(Column(experiment_label(experiment), name) for experiment in columns for name in ("TIL", "CIL")),
        tuple(lines),
        notes_of(results, columns, _runs(results, columns, methods)),
    )


def _forgetting(results: Results, chosen: list[str]) -> Table:
    columns = chosen or _experiments(results, list(EXPERIMENTS))
    methods = _methods(results, columns, "final_accuracy", "forgetting")
    lines = [
        _line(method, (Entry(results.number(experiment, method, "forgetting")) for experiment in columns))
        for method in methods
    ]
    return Table(
        f"Forgetting: TIL lost on earlier tasks, in percentage points, budget {results.budget}",
        "method",
        tuple(Column("", experiment_label(experiment), "none") for experiment in columns),
        tuple(lines),
        ("The paper has a figure of it and no numbers.", *notes_of(results, columns, _runs(results, columns, methods))),
    )


def _parameters(results: Results, chosen: list[str]) -> Table:
    columns, source = chosen or _experiments(results, list(EXPERIMENTS)), "parameters_millions"

    def entry(experiment: str, method: str) -> Entry:
        ours = results.number(experiment, method, "parameters")
        millions = None if ours is None else Number(ours.mean / 1e6, None, ours.seeds)
        return Entry(millions, paper_number(source, experiment, method))

    methods = _methods(results, columns, source, "parameters")
    lines = [_line(method, (entry(experiment, method) for experiment in columns)) for method in methods]
    note = "The networks of budgets other than paper are smaller than the paper's."
    return Table(
        f"Parameters after the last task in millions, budget {results.budget}",
        "method",
        tuple(Column("", experiment_label(experiment), "none", 2) for experiment in columns),
        tuple(lines),
        protocol_notes(results, columns, _runs(results, columns, methods))
        + (() if results.budget == "paper" else (note,)),
    )


_OOD_METHODS = frozenset({"supsup", "supsup-ood", "clom-odin", "clom", "clom-no-ood", "hat"})
"""The systems of Table 2, and HAT, which is CLOM (ODIN) without ODIN."""
_OOD_FIGURES = {"auc_maxlogit": "auc", "task_detection": "task_detection_rate", "til": "til", "cil": "cil"}


def _ood(results: Results, chosen: list[str]) -> Table:
    columns = chosen or _experiments(results, ["cifar10-5t", "cifar100-10t"], among=_OOD_METHODS)
    listed = _methods(results, columns, "ood_ablation", "til")
    methods = [method for method in listed if method in _OOD_METHODS or method not in method_order()]
    lines = [
        _line(
            method,
            (
                Entry(
                    results.number(experiment, method, ours), paper_number("ood_ablation", experiment, method, theirs)
                )
                for experiment in columns
                for ours, theirs in _OOD_FIGURES.items()
            ),
        )
        for method in methods
    ]
    names = ("AUC", "TaskDR", "TIL", "CIL")
    return Table(
        f"OOD detection and continual learning in percent, budget {results.budget}",
        "system",
        tuple(Column(experiment_label(experiment), name) for experiment in columns for name in names),
        tuple(lines),
        (
            "AUC: largest score of a task's block, own test images against those of every other task, mean over pairs.",
            *notes_of(results, columns, _runs(results, columns, methods), derived=False),
        ),
    )


def _line(method: str, entries: Iterable[Entry]) -> Line:
    return Line(method_label(method), tuple(entries), method not in REFERENCES, group_of(method))


def _runs(results: Results, experiments: Sequence[str], methods: Sequence[str]) -> list[Row]:
    """The runs of the unchanged recipes."""
    return [
        row for row in results.rows if row.experiment in experiments and row.method in methods and not row.overrides
    ]


def _experiments(results: Results, of_paper: list[str], among: Iterable[str] | None = None) -> list[str]:
    """The paper's experiments, then others with runs of the unchanged recipe (of the methods in `among`)."""
    wanted = None if among is None else set(among)
    others = [
        experiment
        for experiment in results.experiments()
        if experiment not in of_paper
        and (methods := set(results.methods(experiment)))
        and (wanted is None or methods & wanted)
    ]
    return of_paper + others


def _methods(results: Results, experiments: Sequence[str], table: str, figure: str) -> list[str]:
    """Methods in the paper's table or with a number of ours, by group and in the registry's order; additions and
    plug-ins only with a number."""
    measured = {name: any(results.number(each, name, figure) for each in experiments) for name in results.all_methods()}
    of_paper = [name for name in method_order() if paper_has(table, name) or measured.get(name)]
    others = sorted(name for name, is_there in measured.items() if is_there and name not in method_order())
    return by_group([*of_paper, *others])


TABLES: Mapping[str, Callable[[Results, list[str]], Table]] = {
    "main": _main,
    "average-incremental": _average_incremental,
    "parameters": _parameters,
    "forgetting": _forgetting,
    "ood": _ood,
    "memory": memory_table,
    "scale": scale_table,
    "augmentation": augmentation_table,
}


def check_rows(rows: Sequence[Row], where: object) -> None:
    """Raise if the ledger is empty, most likely because of a wrong path."""
    if not rows:
        raise UserError(
            f"{where} holds no runs. Train with 'clom run' and add runs with 'clom record' or 'clom grid --ledger'."
        )
