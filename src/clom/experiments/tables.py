"""The paper's tables, filled from the ledger, with the paper's own numbers beside ours.

| table | of the paper | rows | columns |
|---|---|---|---|
| `main` | Table 1 | methods | TIL and CIL of each experiment after its last task |
| `ood` | Table 2 | systems with other OOD detectors | AUC, TaskDR, TIL, CIL |
| `memory` | Table 3, left | stored samples per class | CIL |
| `scale` | Table 3, right | s of the hard attention | forgetting, AUC, CIL |
| `augmentation` | Table 4 | augmentations used | TIL and CIL without and with rotation |
| `average-incremental` | appendix | methods | TIL and CIL averaged over all steps |
| `parameters` | appendix | methods | millions of parameters |

Only runs of the plain recipe count, except in the ablations, which count runs that differ in nothing but the setting
in question. What was not measured stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from clom.errors import UserError, unknown
from clom.experiments.comparison import (
    BOUNDS,
    EXPERIMENTS,
    Number,
    Results,
    experiment_label,
    method_label,
    method_order,
    number_of,
    paper_has,
    paper_number,
)
from clom.experiments.config import flatten, resolve
from clom.experiments.ledger import Row
from clom.experiments.names import BUDGETS, experiment_names, read_paper


@dataclass(frozen=True)
class Column:
    group: str
    """What stands above several columns; empty where there is nothing."""
    name: str
    best: Literal["highest", "lowest", "none"] = "highest"
    digits: int = 1


@dataclass(frozen=True)
class Entry:
    """Ours and the paper's; None where there is none."""

    ours: Number | None = None
    paper: Number | None = None


@dataclass(frozen=True)
class Line:
    label: str
    entries: tuple[Entry, ...]
    competes: bool = True
    """Whether it can be the best of a column; bounds cannot."""


@dataclass(frozen=True)
class Table:
    title: str
    heading: str
    """Of the first column."""
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def is_best(self, line: int, column: int) -> bool:
        """Whether ours is the best of ours in the column, as far as the shown digits tell; one alone is no best."""
        how = self.columns[column].best
        numbers = {
            number: round(entry.mean, self.columns[column].digits)
            for number, other in enumerate(self.lines)
            if other.competes and (entry := other.entries[column].ours) is not None
        }
        if how == "none" or len(numbers) < 2 or line not in numbers:
            return False
        return numbers[line] == (max if how == "highest" else min)(numbers.values())


def make_table(name: str, rows: Iterable[Row], budget: str = "cpu", experiments: Sequence[str] = ()) -> Table:
    """One of the paper's tables; `experiments` instead of the paper's and those that the ledger has besides."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    for experiment in experiments:
        if experiment not in experiment_names():
            raise unknown("experiment", experiment, experiment_names())
    return TABLES[name](Results(rows, budget), list(experiments))


# --- tables of systems -----------------------------------------------------------------------------------------------


def _main(results: Results, chosen: list[str]) -> Table:
    columns = chosen or _experiments(results, list(EXPERIMENTS))
    measures = ("til", "cil")
    lines = []
    for method in _methods(results, columns, "final_accuracy", "til"):
        entries = [
            Entry(
                results.number(experiment, method, measure), paper_number("final_accuracy", experiment, method, measure)
            )
            for experiment in columns
            for measure in measures
        ]
        entries += [_average(results, method, measure) for measure in measures if not chosen]
        lines.append(Line(method_label(method), tuple(entries), method not in BOUNDS))
    groups = [*map(experiment_label, columns), *(() if chosen else ("Average",))]
    return Table(
        f"Accuracy after the last task in percent, budget {results.budget}",
        "method",
        tuple(Column(group, name) for group in groups for name in ("TIL", "CIL")),
        tuple(lines),
        _notes(results) + (() if chosen else ("Average: over the paper's six experiments, where all six are there.",)),
    )


def _average(results: Results, method: str, measure: str) -> Entry:
    """Over the paper's six experiments, and only if all six are there."""
    ours = [results.number(experiment, method, measure) for experiment in EXPERIMENTS]
    means = [number.mean for number in ours if number is not None]
    complete = len(means) == len(EXPERIMENTS)
    return Entry(
        Number(sum(means) / len(means)) if complete else None,
        paper_number("final_accuracy", "average", method, measure),
    )


def _average_incremental(results: Results, chosen: list[str]) -> Table:
    columns, source = chosen or _experiments(results, list(EXPERIMENTS)), "average_incremental_accuracy"
    lines = [
        Line(
            method_label(method),
            tuple(
                Entry(
                    results.number(experiment, method, f"average_incremental_{measure}"),
                    paper_number(source, experiment, method, measure),
                )
                for experiment in columns
                for measure in ("til", "cil")
            ),
            method not in BOUNDS,
        )
        for method in _methods(results, columns, source, "average_incremental_til")
    ]
    return Table(
        f"Average incremental accuracy in percent, budget {results.budget}",
        "method",
        tuple(Column(experiment_label(experiment), name) for experiment in columns for name in ("TIL", "CIL")),
        tuple(lines),
        _notes(results),
    )


def _parameters(results: Results, chosen: list[str]) -> Table:
    columns, source = chosen or _experiments(results, list(EXPERIMENTS)), "parameters_millions"

    def entry(experiment: str, method: str) -> Entry:
        ours = results.number(experiment, method, "parameters")
        millions = None if ours is None else Number(ours.mean / 1e6, None, ours.seeds)
        return Entry(millions, paper_number(source, experiment, method))

    lines = [
        Line(method_label(method), tuple(entry(experiment, method) for experiment in columns))
        for method in _methods(results, columns, source, "parameters")
    ]
    note = "The networks of budgets other than paper are smaller than the paper's."
    return Table(
        f"Parameters after the last task in millions, budget {results.budget}",
        "method",
        tuple(Column("", experiment_label(experiment), "none", 2) for experiment in columns),
        tuple(lines),
        () if results.budget == "paper" else (note,),
    )


_OOD_METHODS = frozenset({"supsup", "supsup-ood", "clom-odin", "clom", "clom-no-ood", "hat"})
"""Of Table 2, and HAT: the classifiers of CLOM (ODIN) without ODIN."""
_OOD_FIGURES = {"auc_maxlogit": "auc", "task_detection": "task_detection_rate", "til": "til", "cil": "cil"}


def _ood(results: Results, chosen: list[str]) -> Table:
    columns = chosen or _experiments(results, ["cifar10-5t", "cifar100-10t"], among=_OOD_METHODS)
    lines = [
        Line(
            method_label(method),
            tuple(
                Entry(
                    results.number(experiment, method, ours), paper_number("ood_ablation", experiment, method, theirs)
                )
                for experiment in columns
                for ours, theirs in _OOD_FIGURES.items()
            ),
        )
        for method in _methods(results, columns, "ood_ablation", "til")
        if method in _OOD_METHODS
    ]
    names = ("AUC", "TaskDR", "TIL", "CIL")
    return Table(
        f"OOD detection and continual learning in percent, budget {results.budget}",
        "system",
        tuple(Column(experiment_label(experiment), name) for experiment in columns for name in names),
        tuple(lines),
        (
            "AUC: largest score of a task's block, own test images against those of every other task, mean over pairs.",
            *_notes(results, derived=False),
        ),
    )


# --- ablations -------------------------------------------------------------------------------------------------------


def _memory(results: Results, chosen: list[str]) -> Table:
    content = read_paper()["memory_ablation_cil"]
    columns = chosen or _varied(results, ["cifar100-10t", "cifar100-20t"], {"memory_per_class"}, ("clom",))

    def kept(row: Row) -> int:
        settings = _effective(row)
        return 0 if settings["calibration"] == "none" else int(settings["memory_per_class"])

    def entry(experiment: str, count: int) -> Entry:
        methods = ("clom", "clom-no-calibration") if count == 0 else ("clom",)
        rows = [
            row
            for row in _variants(results, experiment, methods, {"memory_per_class", "calibration"})
            if kept(row) == count and _effective(row)["calibration"] in ("memory", "none")
        ]
        by_seed = {row.seed: row for row in rows}  # without a sample, all ways of saying so are one run
        theirs = None
        if experiment in content and count in content["samples_per_class"]:
            place = content["samples_per_class"].index(count)
            theirs = Number(content[experiment][place], content[f"{experiment}_std"][place])
        return Entry(number_of(by_seed.values(), "cil"), theirs)

    measured = {
        kept(row) for experiment in columns for row in _variants(results, experiment, ("clom",), {"memory_per_class"})
    }
    counts = sorted({*content["samples_per_class"], *measured})
    return Table(
        f"CIL in percent by the number of samples per class kept for calibration, budget {results.budget}",
        "samples per class",
        tuple(Column("", experiment_label(experiment)) for experiment in columns),
        tuple(Line(str(count), tuple(entry(experiment, count) for experiment in columns)) for count in counts),
        _notes(results),
    )


def _scale(results: Results, chosen: list[str]) -> Table:
    content, names = read_paper()["scale_ablation_cifar10-5t"], {"attention.s_max", "attention.binary"}
    columns = chosen or _varied(results, ["cifar10-5t"], names, ("clom",))
    found = {experiment: _variants(results, experiment, ("clom",), names) for experiment in columns}

    def of(row: Row) -> tuple[bool, float]:
        settings = _effective(row)
        return bool(settings["attention.binary"]), float(settings["attention.s_max"])

    def entry(experiment: str, kind: tuple[bool, float], figure: str, theirs: str) -> Entry:
        binary, s = kind
        known = experiment == "cifar10-5t" and not binary and s in content["s"]
        return Entry(
            number_of([row for row in found[experiment] if of(row) == kind], figure),
            Number(content[theirs][content["s"].index(s)]) if known else None,
        )

    kinds = sorted({*((False, float(s)) for s in content["s"]), *(of(row) for rows in found.values() for row in rows)})
    figures = {"forgetting": "forgetting", "auc_maxlogit": "auc", "cil": "cil"}
    return Table(
        f"Protection by s of the hard attention, in percent, budget {results.budget}",
        "s",
        tuple(
            column
            for experiment in columns
            for column in (
                Column(experiment_label(experiment), "forgetting", "lowest"),
                Column(experiment_label(experiment), "AUC"),
                Column(experiment_label(experiment), "CIL"),
            )
        ),
        tuple(
            Line(
                f"{kind[1]:g}" + (", gates rounded" if kind[0] else ""),
                tuple(
                    entry(experiment, kind, ours, theirs) for experiment in columns for ours, theirs in figures.items()
                ),
            )
            for kind in kinds
        ),
        (
            "As in the paper, gates are soft outside training (attention.binary false) unless 'gates rounded' is said; "
            "rounded gates protect exactly whatever s is.",
            *_notes(results, derived=False),
        ),
    )


_FLAGS = {"hflip": "flip", "color": "colour", "crop": "crop"}
_FLAG_LABELS = {"flip": "Hflip", "colour": "Color", "crop": "Crop"}


def _augmentation(results: Results, chosen: list[str]) -> Table:
    names = {f"learning.augmentation.{flag}" for flag in _FLAG_LABELS} | {"learning.rotations"}
    content, methods = read_paper()["augmentation_ablation"], ("clom", "clom-no-ood")
    columns = chosen or _varied(results, ["cifar10-5t", "cifar100-10t"], names, methods)
    found = {experiment: _variants(results, experiment, methods, names) for experiment in columns}

    def of(row: Row) -> tuple[frozenset[str], int]:
        settings = _effective(row)
        used = frozenset(flag for flag in _FLAG_LABELS if settings[f"learning.augmentation.{flag}"])
        return used, int(settings["learning.rotations"])

    known = {frozenset({flag}): name for name, flag in _FLAGS.items()} | {frozenset(_FLAG_LABELS): "all"}

    def entry(experiment: str, used: frozenset[str], rotations: int, measure: str) -> Entry:
        rows = {row.seed: row for row in found[experiment] if of(row) == (used, rotations)}
        theirs = content[known[used]].get(experiment) if used in known else None
        return Entry(
            number_of(rows.values(), measure),
            Number(theirs[measure][int(rotations > 1)]) if theirs is not None else None,
        )

    def label(used: frozenset[str]) -> str:
        if used == frozenset(_FLAG_LABELS):
            return "All"
        return " and ".join(name for flag, name in _FLAG_LABELS.items() if flag in used) or "none"

    others = {of(row)[0] for rows in found.values() for row in rows} - set(known)
    return Table(
        f"Accuracy of CLOM by augmentation, in percent, budget {results.budget}",
        "augmentation",
        tuple(
            Column(experiment_label(experiment), f"{measure}, {rotation} rotation")
            for experiment in columns
            for measure in ("TIL", "CIL")
            for rotation in ("no", "with")
        ),
        tuple(
            Line(
                label(used),
                tuple(
                    entry(experiment, used, rotations, measure)
                    for experiment in columns
                    for measure in ("til", "cil")
                    for rotations in (1, 4)
                ),
            )
            for used in (*known, *sorted(others, key=label))
        ),
        ("Without rotation is learning.rotations=1, as in clom-no-ood.", *_notes(results, derived=False)),
    )


# --- what they share -------------------------------------------------------------------------------------------------


def _experiments(results: Results, of_paper: list[str], among: Iterable[str] | None = None) -> list[str]:
    """The paper's, and others with a row that could appear."""
    wanted = None if among is None else set(among)
    others = [
        experiment
        for experiment in results.experiments()
        if experiment not in of_paper
        and (methods := set(results.methods(experiment)))
        and (wanted is None or methods & wanted)
    ]
    return of_paper + others


def _varied(results: Results, of_paper: list[str], names: set[str], methods: tuple[str, ...]) -> list[str]:
    """The paper's experiments, and others in which one of the settings was varied."""
    others = [
        experiment
        for experiment in results.experiments()
        if experiment not in of_paper and any(row.overrides for row in _variants(results, experiment, methods, names))
    ]
    return of_paper + others


def _methods(results: Results, experiments: Sequence[str], table: str, figure: str) -> list[str]:
    """In the registry's order: those of the paper's table, and those with a number of ours."""
    return [
        method
        for method in method_order()
        if paper_has(table, method) or any(results.number(name, method, figure) for name in experiments)
    ]


def _variants(results: Results, experiment: str, methods: Sequence[str], names: set[str]) -> list[Row]:
    """Runs that differ from the recipe in nothing but these settings."""
    return [
        row
        for row in (*results.rows, *results.derived)
        if row.experiment == experiment and row.method in methods and set(row.overrides) <= names
    ]


def _effective(row: Row) -> dict[str, Any]:
    """All settings of a run's method by dotted name, from its recipe and what was changed."""
    return {**_recipe_of(row.experiment, row.method, row.budget), **row.overrides}


@cache
def _recipe_of(experiment: str, method: str, budget: str) -> Mapping[str, Any]:
    return flatten(resolve(experiment, method, budget).settings)


def _notes(results: Results, derived: bool = True) -> tuple[str, ...]:
    notes = []
    if derived and any(not row.overrides for row in results.derived):
        notes.append("CLOM(-c): read off the runs of CLOM, whose networks are the same.")
    if results.budget != "paper":
        notes.append("The paper trains for 700 epochs on all images with larger networks: other work, other numbers.")
    return tuple(notes)


TABLES: Mapping[str, Callable[[Results, list[str]], Table]] = {
    "main": _main,
    "average-incremental": _average_incremental,
    "parameters": _parameters,
    "ood": _ood,
    "memory": _memory,
    "scale": _scale,
    "augmentation": _augmentation,
}


def check_rows(rows: Sequence[Row], where: object) -> None:
    """An empty ledger is more likely a wrong path than a wish for a table of dashes."""
    if not rows:
        raise UserError(
            f"{where} holds no runs. 'clom run' makes them, 'clom record' or 'clom grid --ledger' adds them."
        )
