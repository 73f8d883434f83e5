"""Figures over many runs, from the ledger.

| figure | shows |
|---|---|
| `forgetting` | what each method lost of earlier tasks (the paper's Fig. 2) |
| `til-curves`, `cil-curves` | accuracy after each task (appendix); dashed: keeps no samples |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from clom.errors import UserError
from clom.experiments.catalogue import size_of
from clom.experiments.ledger import Row
from clom.methods.registry import COMPARED_METHODS, PAPER_METHODS, method_label
from clom.reporting.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, STYLE, panels, save
from clom.reporting.paper.numbers import (
    REFERENCES,
    TIL_SYSTEMS,
    Results,
    experiment_label,
    method_order,
    number_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ADDITIONS = tuple(name for name in COMPARED_METHODS if name not in PAPER_METHODS)
"""Compared systems that the paper does not have."""
_LINES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)  # black is CLOM's alone; yellow lines are too faint on white
_MARKERS: tuple[Any, ...] = (*"osD^vPX*<>phd8H+x1234", (6, 1), (8, 1), (3, 1))


def draw_from_ledger(
    name: Literal["forgetting", "til-curves", "cil-curves"],
    rows: Sequence[Row],
    out: Path,
    budget: str = "cpu",
    experiments: Sequence[str] = (),
) -> list[Path]:
    results = Results(rows, budget)
    if name == "forgetting":
        return draw_forgetting(results, experiments, out)
    return draw_curves(results, "til" if name == "til-curves" else "cil", experiments, out)


def draw_forgetting(results: Results, experiments: Sequence[str], out: Path) -> list[Path]:
    """Bars by method, coloured by kind of system, with one panel per experiment."""
    kinds = {
        "CLOM": (BLACK, ""),
        "TIL systems": (ORANGE, "///"),
        "CIL systems": (SKY, "..."),
        "references": ("#FFFFFF", ""),
        "additions": (GREY, ""),
    }
    chosen = _with_rows(results, experiments)
    methods = [name for name in _shown(results) if any(results.plain(experiment, name) for experiment in chosen)]
    with plt.rc_context(STYLE):
        figure, axes = panels(len(chosen), 4.4 if len(chosen) > 1 else 5.6, 1.3 + 0.22 * len(methods), _across(chosen))
        for axis, experiment in zip(axes, chosen, strict=True):
            _forgetting_bars(axis, results, experiment, methods, kinds)
        used = {_kind(method) for method in methods}
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=colour, hatch=hatch, edgecolor=BLACK, label=kind)
            for kind, (colour, hatch) in kinds.items()
            if kind in used
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        figure.suptitle(f"Forgetting in TIL: mean over earlier tasks, budget {results.budget}", fontsize=10)
        return save(figure, out, f"forgetting-{results.budget}")


def _forgetting_bars(
    axis: Axes, results: Results, experiment: str, methods: Sequence[str], kinds: Mapping[str, tuple[str, str]]
) -> None:
    for place, method in enumerate(methods):
        number = number_of(results.plain(experiment, method), "forgetting")
        if number is None:
            axis.annotate("–", (0, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
            continue
        colour, hatch = kinds[_kind(method)]
        spread = None if number.std is None else number.std
        axis.barh(
            place, number.mean, 0.72, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.6, xerr=spread,
            error_kw={"elinewidth": 0.9, "capsize": 2, "ecolor": "#444444"},
        )  # fmt: skip
        end = max(0.0, number.mean) + (spread or 0.0)
        axis.annotate(f"{number.mean:.1f}", (end, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    axis.set_yticks(range(len(methods)), [method_label(method) for method in methods])
    axis.set(title=experiment_label(experiment), xlabel="accuracy lost (percentage points)")
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.axvline(0, color=BLACK, linewidth=0.8)
    axis.margins(x=0.12)
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, -0.05), max(high, 1.0))  # nothing forgotten is nothing, not rounding errors
    axis.grid(axis="x", alpha=0.25)


def _kind(method: str) -> str:
    if method in REFERENCES:
        return "references"
    if method in TIL_SYSTEMS:
        return "TIL systems"
    if method in ADDITIONS or method not in method_order():
        return "additions"
    return "CLOM" if method.startswith("clom") else "CIL systems"


def draw_curves(results: Results, measure: Literal["til", "cil"], experiments: Sequence[str], out: Path) -> list[Path]:
    """Accuracy over all classes so far, after each task; CLOM(-c) is left out of TIL, where it is CLOM."""
    chosen = _with_rows(results, experiments)
    curves = {experiment: curves_of(results, experiment, measure) for experiment in chosen}
    methods = [name for name in _shown(results) if any(name in found for found in curves.values())]
    with plt.rc_context(STYLE):
        figure, axes = panels(len(chosen), 4.6 if len(chosen) > 1 else 6.8, 4.4, _across(chosen))
        for axis, experiment in zip(axes, chosen, strict=True):
            size = size_of(experiment)  # for a user's own experiment, only the tasks are known
            for method, curve in curves[experiment].items():
                axis.plot(classes_learned(experiment, curve), curve.means, **_look(method, curve.keeps_samples))
            learned = "classes" if size else "tasks"
            axis.set(title=experiment_label(experiment), xlabel=f"{learned} learned", ylabel=f"{measure.upper()} (%)")
            axis.grid(alpha=0.25)
        looks = {m: _look(m, any(c[m].keeps_samples for c in curves.values() if m in c)) for m in methods}
        handles = [Line2D([], [], **looks[method], label=_curve_label(method, measure)) for method in methods]
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8, handlelength=3.4)
        figure.suptitle(
            f"{measure.upper()} while learning, budget {results.budget}; dashed: keeps no samples", fontsize=10
        )
        return save(figure, out, f"{measure}-curves-{results.budget}")


@dataclass(frozen=True)
class Curve:
    means: list[float]
    """Percent, over the seeds, after each task."""
    keeps_samples: bool


def classes_learned(experiment: str, curve: Curve) -> list[float]:
    """After each task; for a user's own experiment, only the number of tasks is known."""
    size, n_tasks = size_of(experiment), len(curve.means)
    return [(size.classes / n_tasks if size else 1) * (task + 1) for task in range(n_tasks)]


def curves_of(results: Results, experiment: str, measure: str) -> dict[str, Curve]:
    """The curves of all systems with runs, in the registry's order; additions last."""
    found = {}
    for method in _shown(results):
        if measure == "til" and method == "clom-no-calibration" and results.plain(experiment, "clom"):
            continue
        rows = [row for row in results.plain(experiment, method) if _is_curve(row.by_task.get(measure))]
        rows = [row for row in rows if len(row.by_task[measure]) == len(rows[0].by_task[measure])]
        if rows:
            means = [100 * fmean(after) for after in zip(*(row.by_task[measure] for row in rows), strict=True)]
            found[method] = Curve(means, any(row.figures.get("memory_bytes") for row in rows))
    return found


def _is_curve(values: list[Any] | None) -> bool:
    return bool(values) and all(value is not None and math.isfinite(value) for value in values or ())


def _shown(results: Results) -> list[str]:
    """The paper's systems, then others."""
    return [*method_order(), *sorted(results.all_methods() - set(method_order()))]


def _curve_label(method: str, measure: str) -> str:
    return "CLOM, CLOM(-c)" if measure == "til" and method == "clom" else method_label(method)


def _look(method: str, keeps_samples: bool) -> dict[str, Any]:
    """The line style of a method, the same in every figure; colours repeat, markers do not."""
    order = [*method_order(), *ADDITIONS]
    place = order.index(method) if method in order else len(order)
    colour = BLACK if method == "clom" else _LINES[place % len(_LINES)]
    return {
        "color": colour,
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": "-" if keeps_samples else (0, (5, 2)),
        "linewidth": 2.6 if method == "clom" else 1.2,
        "markersize": 5,
        "markerfacecolor": colour if keeps_samples else "white",
    }


def _across(chosen: Sequence[str]) -> int:
    """Panels in a row."""
    return 3 if len(chosen) <= 6 else 4


def _with_rows(results: Results, experiments: Sequence[str]) -> list[str]:
    chosen = [name for name in (experiments or results.experiments()) if results.methods(name)]
    if not chosen:
        raise UserError(f"The ledger has no runs of the unchanged recipe for this figure at budget '{results.budget}'.")
    return chosen
