"""The paper's ablation tables: runs of CLOM that differ from the recipe only in the setting in question.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from clom.experiments.catalogue import experiment_names
from clom.experiments.config import resolve
from clom.experiments.ledger import Row
from clom.reporting.paper.numbers import Number, Results, experiment_label, number_of
from clom.reporting.paper.published import read_paper
from clom.reporting.paper.table import Column, Entry, Line, Table, notes_of
from clom.settings import flatten


def memory_table(results: Results, chosen: list[str]) -> Table:
    content = read_paper()["memory_ablation_cil"]
    columns = chosen or _varied(results, ["cifar100-10t", "cifar100-20t"], {"memory_per_class"}, ("clom",))

    def stored(row: Row) -> int:
        settings = _effective(row)
        return 0 if settings["calibration"] == "none" else int(settings["memory_per_class"])

    def found(experiment: str) -> list[Row]:
        rows = _variants(results, experiment, ("clom", "clom-no-calibration"), {"memory_per_class", "calibration"})
        return [row for row in rows if _effective(row)["calibration"] in ("memory", "none")]

    def entry(experiment: str, count: int) -> Entry:
        rows = [row for row in found(experiment) if stored(row) == count]
        by_seed = {row.seed: row for row in rows}  # without samples, both spellings are the same run
        theirs = None
        if experiment in content and count in content["samples_per_class"]:
            place = content["samples_per_class"].index(count)
            theirs = Number(content[experiment][place], content[f"{experiment}_std"][place])
        return Entry(number_of(by_seed.values(), "cil"), theirs)

    measured = {
        stored(row) for experiment in columns for row in _variants(results, experiment, ("clom",), {"memory_per_class"})
    }
    counts = sorted({*content["samples_per_class"], *measured})
    return Table(
        f"CIL in percent by the number of samples per class kept for calibration, budget {results.budget}",
        "samples per class",
        tuple(Column("", experiment_label(experiment)) for experiment in columns),
        tuple(Line(str(count), tuple(entry(experiment, count) for experiment in columns)) for count in counts),
        notes_of(results, columns, [row for experiment in columns for row in found(experiment)]),
    )


def scale_table(results: Results, chosen: list[str]) -> Table:
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
            "As in the paper, gates are soft outside training (attention.binary false) unless marked 'gates rounded'; "
            "rounded gates protect exactly for any s.",
            *notes_of(results, columns, chain(*found.values()), derived=False),
        ),
    )


_FLAGS = {"hflip": "flip", "color": "colour", "crop": "crop"}
_FLAG_LABELS = {"flip": "Hflip", "colour": "Color", "crop": "Crop"}


def augmentation_table(results: Results, chosen: list[str]) -> Table:
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
        (
            "Without rotation is learning.rotations=1, as in clom-no-ood.",
            *notes_of(results, columns, chain(*found.values()), derived=False),
        ),
    )


def _varied(results: Results, of_paper: list[str], names: set[str], methods: tuple[str, ...]) -> list[str]:
    """The paper's experiments, then others with runs that vary one of the settings."""
    others = [
        experiment
        for experiment in results.experiments()
        if experiment not in of_paper and any(row.overrides for row in _variants(results, experiment, methods, names))
    ]
    return of_paper + others


def _variants(results: Results, experiment: str, methods: Sequence[str], names: set[str]) -> list[Row]:
    """Runs that differ from the recipe only in these settings."""
    if experiment not in experiment_names():
        return []  # a user's experiment file, whose recipe is not in the ledger
    return [
        row
        for row in (*results.rows, *results.derived)
        if row.experiment == experiment and row.method in methods and set(row.overrides) <= names
    ]


def _effective(row: Row) -> dict[str, Any]:
    """All settings of a run's method by dotted name: its recipe with the overrides."""
    return {**_recipe_of(row.experiment, row.method, row.budget), **row.overrides}


@cache
def _recipe_of(experiment: str, method: str, budget: str) -> Mapping[str, Any]:
    return flatten(resolve(experiment, method, budget).settings)
