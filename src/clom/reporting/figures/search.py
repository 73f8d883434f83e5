"""The figure of a search: the result of each trial, and which choices mattered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt

from clom.methods.registry import method_label
from clom.reporting.figures.style import BLUE, GREEN, GREY, ORANGE, RED, STYLE, save
from clom.reporting.paper.numbers import experiment_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"published": ORANGE, "by hand": GREEN}


def draw_search(record: Mapping[str, Any], out: Path) -> list[Path]:
    """From the content of a `search.json`."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9.0, 3.4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
        )
        _history(left, record)
        _importance(right, record)
        tasks = record["trial"]["tasks"]
        figure.suptitle(
            f"Search for {method_label(record['method'])} on {experiment_label(record['experiment'])}: CIL after "
            f"{tasks} task{'s' if tasks > 1 else ''} on held-out training images",
            fontsize=10,
        )
        return save(figure, out, "search")


def _history(axis: Axes, record: Mapping[str, Any]) -> None:
    """One column per trial: small marks after each task, a large one after the last."""
    trials, n_tasks = record["trials"], record["trial"]["tasks"]
    best = 0.0
    bests = []
    for trial in trials:
        values = [100 * value for value in trial["cil"]]
        number, colour = trial["number"], _COLOURS.get(trial["start"], BLUE)
        axis.plot([number] * len(values), values, "_", color=GREY, markersize=9)
        for task, value in enumerate(values[:-1], start=1):
            axis.annotate(f"{task}", (number, value), (6, -3), textcoords="offset points", fontsize=6, color=GREY)
        if trial["state"] == "finished" and len(values) == n_tasks:
            axis.plot(number, values[-1], "o", color=colour, markersize=8, zorder=3)
            label = f"{values[-1]:.1f}"
            best = max(best, values[-1])
        else:
            axis.plot(number, values[-1] if values else 0.0, "x", color=RED, markersize=8, zorder=3)
            label = trial["state"]
        place = (number, values[-1] if values else 0.0)
        axis.annotate(label, place, (0, -13), textcoords="offset points", ha="center", fontsize=7)
        bests.append(best)
    numbers = [trial["number"] for trial in trials]
    axis.step(numbers, bests, where="post", color=BLUE, linewidth=1, alpha=0.6)
    for name in dict.fromkeys(trial["start"] for trial in trials):
        axis.plot([], [], "o", color=_COLOURS.get(name, BLUE), label=f"starts from: {name}")
    axis.plot([], [], "_", color=GREY, label="after earlier tasks")
    axis.plot([], [], "-", color=BLUE, alpha=0.6, label="best so far")
    axis.set(xlabel="trial", ylabel="CIL (%)", title="history", xticks=numbers)
    axis.margins(x=0.1, y=0.15)
    axis.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _importance(axis: Axes, record: Mapping[str, Any]) -> None:
    """Shares of the variance between finished trials; with so few of them, a hint at most."""
    shares = dict(sorted(record["importance"].items(), key=lambda item: item[1]))  # drawn from below
    axis.set_title("importance (share of variance)")
    if not shares:
        axis.text(0.5, 0.5, "too few finished trials", ha="center", va="center", color=GREY)
        axis.set_axis_off()
        return
    bars = axis.barh(list(shares), list(shares.values()), color=BLUE)
    axis.bar_label(bars, [f"{share:.2f}" for share in shares.values()], padding=3, fontsize=7)
    axis.set_xlim(0, 1.12)
