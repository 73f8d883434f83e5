"""Our numbers, from the ledger, and the paper's, from `paper.json`, looked up by the same names.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clom.experiments.catalogue import BUDGETS
from clom.experiments.ledger import Row
from clom.methods.registry import BUILT_IN, PAPER_METHODS
from clom.reporting.paper.protocol import split_by_protocol
from clom.reporting.paper.published import is_printed, read_paper

REFERENCES = frozenset({"finetune", "joint"})
"""Not systems of the paper: training without any protection from forgetting, and training on all data at once."""
PAPER_NAMES: Mapping[str, str] = {name: short for name in PAPER_METHODS if is_printed(short := BUILT_IN[name].short)}
"""Our name -> the paper's, of the systems that the paper prints numbers of. It prints none of RPS-Net, but of A-RPS."""
OTHER_SPELLINGS: Mapping[str, str] = {"MUC-LwF": "MUC"}
"""A second name that the paper uses for a system -> its first."""
TIL_SYSTEMS = frozenset({"hat", "hypernet", "supsup", "supsup-ood", "clom-odin"})
"""The paper's group of TIL systems, which CLOM and its other variants are not part of."""
EXPERIMENTS: Mapping[str, str] = {
    "mnist-5t": "MNIST-5T",
    "cifar10-5t": "CIFAR10-5T",
    "cifar100-10t": "CIFAR100-10T",
    "cifar100-20t": "CIFAR100-20T",
    "tinyimagenet-5t": "T-ImageNet-5T",
    "tinyimagenet-10t": "T-ImageNet-10T",
}
"""The paper's experiments in its order -> their labels in the paper."""
PERCENT = frozenset(
    {
        "til",
        "cil",
        "task_detection",
        "auc_maxlogit",
        "auc_msp",
        "forgetting",
        "average_incremental_til",
        "average_incremental_cil",
    }
)


def method_order() -> list[str]:
    """The registry's order."""
    return list(PAPER_METHODS)


def budgets_of(rows: Iterable[Row]) -> list[str]:
    """The budgets of the rows, the largest first; unknown ones last."""
    found = {row.budget for row in rows}
    return [*(name for name in reversed(list(BUDGETS)) if name in found), *sorted(found - set(BUDGETS))]


def experiment_label(experiment: str) -> str:
    return EXPERIMENTS.get(experiment, experiment)


@dataclass(frozen=True)
class Number:
    """A mean, fractions in percent. `std` is the sample standard deviation (n - 1), None for one seed."""

    mean: float
    std: float | None = None
    seeds: int | None = None

    @staticmethod
    def of(values: Sequence[float]) -> Number | None:
        if not values:
            return None
        std = statistics.stdev(values) if len(values) > 1 else None
        return Number(statistics.fmean(values), std, len(values))


# --- ours ------------------------------------------------------------------------------------------------------------


def figure_of(row: Row, name: str) -> float | None:
    """One figure of a run, in percent or in its own unit; `cil.scale` is the CIL of one calibration."""
    figure, _, calibration = name.partition(".")
    value = row.figures.get("cil_by_calibration", {}).get(calibration) if calibration else row.figures.get(figure)
    if value is None or not math.isfinite(value):
        return None
    return 100 * value if figure in PERCENT else float(value)


class Results:
    """The ledger's rows of one budget. Every run of CLOM also counts as a run of CLOM(-c).

    Of an experiment with runs under the protocol, only these count; the others are in `earlier`.
    """

    def __init__(self, rows: Iterable[Row], budget: str) -> None:
        self.budget = budget
        self.rows, self.earlier = split_by_protocol(row for row in rows if row.budget == budget)
        known = {(row.experiment, row.seed, _text(row.overrides)) for row in self.rows if row.method == _UNCALIBRATED}
        self.derived = [
            _uncalibrated(row)
            for row in self.rows
            if row.method == "clom"
            and "none" in row.figures.get("cil_by_calibration", {})
            and (row.experiment, row.seed, _text(row.overrides)) not in known
        ]

    def experiments(self) -> list[str]:
        """Experiments with at least one row: the paper's in its order, then others."""
        found = {row.experiment for row in self.rows}
        return [*(name for name in EXPERIMENTS if name in found), *sorted(found - set(EXPERIMENTS))]

    def all_methods(self) -> set[str]:
        """Methods with at least one row."""
        return {row.method for row in (*self.rows, *self.derived)}

    def methods(self, experiment: str) -> list[str]:
        """Methods with at least one run of the unchanged recipe, in the registry's order."""
        found = {row.method for row in self.rows if row.experiment == experiment and not row.overrides}
        return [*(name for name in method_order() if name in found), *sorted(found - set(method_order()))]

    def plain(self, experiment: str, method: str) -> list[Row]:
        """The runs of the unchanged recipe, by seed."""
        found = [
            row
            for row in (*self.rows, *self.derived)
            if row.experiment == experiment and row.method == method and not row.overrides
        ]
        return sorted(found, key=lambda row: row.seed)

    def number(self, experiment: str, method: str, figure: str) -> Number | None:
        return number_of(self.plain(experiment, method), figure)


def number_of(rows: Iterable[Row], figure: str) -> Number | None:
    """The mean over the runs that have the figure."""
    values = [figure_of(row, figure) for row in rows]
    return Number.of([value for value in values if value is not None])


_UNCALIBRATED = "clom-no-calibration"


def _uncalibrated(row: Row) -> Row:
    """A run of CLOM as CLOM(-c): the same network without calibration. Figures that were not measured are left out."""
    same = [
        "til",
        "forgetting",
        "average_incremental_til",
        "parameters",
        "passes",
        "allowance",
        "minutes",
        "cpu_minutes",
        "peak_memory_gb",
    ]
    by_task = {name: values for name, values in row.by_task.items() if name != "cil"}
    cil = by_task.pop("cil_uncalibrated", None)
    detected = by_task.pop("task_detection_uncalibrated", None)
    measured: dict[str, Any] = {"cil": row.figures["cil_by_calibration"]["none"], "memory_bytes": 0}
    if cil and detected and None not in (*cil, detected[-1]):
        measured |= {"average_incremental_cil": statistics.fmean(cil), "task_detection": detected[-1]}
        by_task["cil"] = cil
    if "passes" in row.figures:  # versions that did not count them computed the AUC from calibrated scores
        same += ["auc_maxlogit", "auc_msp"]
    figures = {name: row.figures[name] for name in same if name in row.figures} | measured
    return replace(row, method=_UNCALIBRATED, figures=figures, by_task=by_task)


def _text(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True)


# --- the paper's -----------------------------------------------------------------------------------------------------


def paper_systems() -> set[str]:
    """The names of all systems in the paper's tables."""
    content = read_paper()
    tables = ("final_accuracy", "average_incremental_accuracy", "parameters_millions", "ood_ablation")
    return {name for table in tables for name in content[table]}


def paper_number(table: str, experiment: str, method: str, measure: str | None = None) -> Number | None:
    """An entry of one of the paper's tables of systems; `measure` selects one of several values."""
    content: dict[str, dict[str, Any]] = read_paper()[table]
    names = [
        PAPER_NAMES.get(method),
        *(other for other, first in OTHER_SPELLINGS.items() if first == PAPER_NAMES.get(method)),
    ]
    found = [content[name] for name in names if name in content]
    entry = found[0].get(experiment) if found else None
    if entry is None or measure is None:
        return None if entry is None else Number(entry)
    return Number(entry[measure], entry.get(f"{measure}_std")) if measure in entry else None


def paper_has(table: str, method: str) -> bool:
    """Whether the system has a row in the table, even an empty one."""
    spelling = {OTHER_SPELLINGS.get(name, name) for name in read_paper()[table]}
    return PAPER_NAMES.get(method) in spelling


def reported(experiment: str, method: str) -> dict[str, Number]:
    """The paper's figures of a system on an experiment, by the names of a run's summary."""
    sources = {
        "til": ("ood_ablation", "til"),
        "cil": ("ood_ablation", "cil"),
        "task_detection": ("ood_ablation", "task_detection_rate"),
        "auc_maxlogit": ("ood_ablation", "auc"),
        "parameters": ("parameters_millions", None),
    }
    found = {name: paper_number(table, experiment, method, measure) for name, (table, measure) in sources.items()}
    for table, prefix in (("final_accuracy", ""), ("average_incremental_accuracy", "average_incremental_")):
        for measure in ("til", "cil"):
            found[prefix + measure] = paper_number(table, experiment, method, measure) or found.get(prefix + measure)
    return {name: number for name, number in found.items() if number is not None}


def all_systems(experiment: str, measure: str = "cil") -> dict[str, Number]:
    """One figure of every system in the paper's main table; empty if the paper lacks the experiment."""
    numbers = {
        name: paper_number("final_accuracy", experiment, method, measure) for method, name in PAPER_NAMES.items()
    }
    return {name: number for name, number in numbers.items() if number is not None}
