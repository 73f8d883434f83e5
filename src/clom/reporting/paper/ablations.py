"""The paper's ablation tables: runs of CLOM that differ from the recipe only in the setting in question.

They may be shorter than the recipe (`length` in a grid), but all of one table and experiment are equally long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from clom.experiments.catalogue import experiment_names, read_experiment
from clom.experiments.config import resolve
from clom.experiments.ledger import Row
from clom.reporting.paper.numbers import Number, Results, experiment_label, number_of
from clom.reporting.paper.published import read_paper
from clom.reporting.paper.table import Column, Entry, Line, Table, notes_of
from clom.settings import flatten

# --- runs ------------------------------------------------------------------------------------------------------------

_LENGTHS = ("epochs", "first_epochs", "patience", "warmup", "horizon", "steps")
"""Settings that change with the length of training, by the last part of their names."""
_FLAG_LABELS = {"flip": "Hflip", "colour": "Color", "crop": "Crop"}
Gates = tuple[bool, float]
"""Whether gates are rounded outside training, and s."""
Views = tuple[frozenset[str], int]
"""The augmentations that are used, and the number of rotations."""
ALL_VIEWS = frozenset(_FLAG_LABELS)


def memory_rows(results: Results, experiment: str) -> dict[int, list[Row]]:
    """Runs of CLOM by the number of samples per class kept for calibration."""

    def stored(row: Row) -> int:
        settings = _effective(row)
        return 0 if settings["calibration"] == "none" else int(settings["memory_per_class"])

    names = {"memory_per_class", "calibration"}
    rows = _variants(results, experiment, ("clom", "clom-no-calibration"), names)
    found: dict[int, dict[int, Row]] = {}
    for row in rows:
        if _effective(row)["calibration"] in ("memory", "none"):
            found.setdefault(stored(row), {}).setdefault(row.seed, row)  # 0 samples and CLOM(-c) are the same run
    return {count: list(by_seed.values()) for count, by_seed in sorted(found.items())}


def gate_rows(results: Results, experiment: str) -> dict[Gates, list[Row]]:
    """Runs of CLOM by s of the hard attention."""
    found: dict[Gates, list[Row]] = {}
    for row in _variants(results, experiment, ("clom",), {"attention.s_max", "attention.binary"}):
        settings = _effective(row)
        kind = bool(settings["attention.binary"]), float(settings["attention.s_max"])
        found.setdefault(kind, []).append(row)
    return found


def view_rows(results: Results, experiment: str) -> dict[Views, list[Row]]:
    """Runs of CLOM, with and without rotations, by the augmentations used."""
    names = {f"learning.augmentation.{flag}" for flag in _FLAG_LABELS} | {"learning.rotations"}
    found: dict[Views, dict[int, Row]] = {}
    for row in _variants(results, experiment, ("clom", "clom-no-ood"), names):
        settings = _effective(row)
        used = frozenset(flag for flag in _FLAG_LABELS if settings[f"learning.augmentation.{flag}"])
        found.setdefault((used, int(settings["learning.rotations"])), {}).setdefault(row.seed, row)
    return {views: list(by_seed.values()) for views, by_seed in found.items()}


def views_label(used: frozenset[str]) -> str:
    if used == ALL_VIEWS:
        return "All"
    return " and ".join(name for flag, name in _FLAG_LABELS.items() if flag in used) or "none"


def changed_settings(row: Row) -> set[str]:
    """The settings that differ from the recipe, other than the length of training."""
    return {name for name in row.overrides if name.rpartition(".")[2] not in _LENGTHS}


def length_of(row: Row) -> float | None:
    """The fraction of the experiment's allowance that a shortened run was fitted to; 1 for the recipe's own length,
    None if the numbers of epochs were changed in another way."""
    if len(changed_settings(row)) == len(row.overrides):
        return 1.0
    allowed, own = row.figures.get("allowance"), _allowance(row.experiment, row.budget)
    return round(allowed / own, 3) if allowed and own and allowed < own else None


@cache
def _allowance(experiment: str, budget: Any) -> float | None:
    return read_experiment(experiment).at(budget).allowance


def _variants(results: Results, experiment: str, methods: Sequence[str], names: set[str]) -> list[Row]:
    """Runs that differ from the recipe only in these settings, all of the length of those that do."""
    if experiment not in experiment_names():
        return []  # a user's experiment file, whose recipe is not in the ledger
    rows = [
        row
        for row in (*results.rows, *results.derived)
        if row.experiment == experiment and row.method in methods and changed_settings(row) <= names
    ]
    lengths = Counter(length for row in rows if changed_settings(row) and (length := length_of(row)) is not None)
    usual = max(lengths, key=lambda length: (lengths[length], -length), default=1.0)
    return [row for row in rows if length_of(row) == usual]


def _effective(row: Row) -> dict[str, Any]:
    """All settings of a run's method by dotted name: its recipe with the overrides."""
    return {**_recipe_of(row.experiment, row.method, row.budget), **row.overrides}


@cache
def _recipe_of(experiment: str, method: str, budget: str) -> Mapping[str, Any]:
    return flatten(resolve(experiment, method, budget).settings)


# --- tables ----------------------------------------------------------------------------------------------------------


def memory_table(results: Results, chosen: list[str]) -> Table:
    content = read_paper()["memory_ablation_cil"]
    found = {experiment: memory_rows(results, experiment) for experiment in (*results.experiments(), *chosen)}
    columns = chosen or _varied(["cifar100-10t", "cifar100-20t"], found)

    def entry(experiment: str, count: int) -> Entry:
        theirs = None
        if experiment in content and count in content["samples_per_class"]:
            place = content["samples_per_class"].index(count)
            theirs = Number(content[experiment][place], content[f"{experiment}_std"][place])
        return Entry(number_of(found.get(experiment, {}).get(count, ()), "cil"), theirs)

    rows = [row for experiment in columns for row in chain(*found.get(experiment, {}).values())]
    measured = {count for experiment in columns for count in found.get(experiment, {})}
    counts = sorted({*content["samples_per_class"], *measured})
    return Table(
        f"CIL in percent by the number of samples per class kept for calibration, budget {results.budget}",
        "samples per class",
        tuple(Column("", experiment_label(experiment)) for experiment in columns),
        tuple(Line(str(count), tuple(entry(experiment, count) for experiment in columns)) for count in counts),
        notes_of(results, columns, rows),
    )


def scale_table(results: Results, chosen: list[str]) -> Table:
    content = read_paper()["scale_ablation_cifar10-5t"]
    found = {experiment: gate_rows(results, experiment) for experiment in (*results.experiments(), *chosen)}
    columns = chosen or _varied(["cifar10-5t"], found)

    def entry(experiment: str, kind: Gates, figure: str, theirs: str) -> Entry:
        binary, s = kind
        known = experiment == "cifar10-5t" and not binary and s in content["s"]
        return Entry(
            number_of(found.get(experiment, {}).get(kind, ()), figure),
            Number(content[theirs][content["s"].index(s)]) if known else None,
        )

    measured = {kind for experiment in columns for kind in found.get(experiment, {})}
    kinds = sorted({*((False, float(s)) for s in content["s"]), *measured})
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
            *_length_note(found, columns),
            *notes_of(results, columns, _all_rows(found, columns), derived=False),
        ),
    )


def augmentation_table(results: Results, chosen: list[str]) -> Table:
    content = read_paper()["augmentation_ablation"]
    found = {experiment: view_rows(results, experiment) for experiment in (*results.experiments(), *chosen)}
    columns = chosen or _varied(["cifar10-5t", "cifar100-10t"], found)
    known = {frozenset({flag}): name for name, flag in {"hflip": "flip", "color": "colour", "crop": "crop"}.items()}
    known[ALL_VIEWS] = "all"

    def entry(experiment: str, used: frozenset[str], rotations: int, measure: str) -> Entry:
        theirs = content[known[used]].get(experiment) if used in known else None
        return Entry(
            number_of(found.get(experiment, {}).get((used, rotations), ()), measure),
            Number(theirs[measure][int(rotations > 1)]) if theirs is not None else None,
        )

    others = {used for experiment in columns for used, _ in found.get(experiment, {})} - set(known)
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
                views_label(used),
                tuple(
                    entry(experiment, used, rotations, measure)
                    for experiment in columns
                    for measure in ("til", "cil")
                    for rotations in (1, 4)
                ),
            )
            for used in (*known, *sorted(others, key=views_label))
        ),
        (
            "Without rotation is learning.rotations=1, as in clom-no-ood.",
            *_length_note(found, columns),
            *notes_of(results, columns, _all_rows(found, columns), derived=False),
        ),
    )


Found = Mapping[str, Mapping[Any, Sequence[Row]]]
"""Experiment -> kind of run -> runs."""


def _varied(of_paper: list[str], found: Found) -> list[str]:
    """The paper's experiments, then others with runs that vary one of the settings."""
    others = [
        experiment
        for experiment in found
        if experiment not in of_paper and any(changed_settings(row) for row in _all_rows(found, [experiment]))
    ]
    return of_paper + others


def _all_rows(found: Found, experiments: Sequence[str]) -> list[Row]:
    return [row for experiment in experiments for row in chain(*found.get(experiment, {}).values())]


def _length_note(found: Found, experiments: Sequence[str]) -> list[str]:
    """Which fraction of the allowance the runs had, if not all of it."""
    shares = sorted({length_of(row) or 1.0 for row in _all_rows(found, experiments)} - {1.0})
    if not shares:
        return []
    text = " or ".join(f"{100 * share:g}%" for share in shares)
    return [f"Ablations are shorter than the recipes: their runs may use {text} of the experiment's allowance."]
