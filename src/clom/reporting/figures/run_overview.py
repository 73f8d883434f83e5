"""The overview figure of a run, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from clom.experiments.run import RunResult
from clom.experiments.task_result import used_shares
from clom.reporting.figures.style import BLUE, GREEN, GREY, ORANGE, STYLE, save
from clom.reporting.labels import cil_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_run(result: RunResult) -> list[Path]:
    """Accuracy after each task, task confusion, and the capacity in use."""
    panels = [_accuracy, _confusion, _capacity] if result.tasks[-1].capacity else [_accuracy, _confusion]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(4.1 * len(panels), 3.5), layout="constrained")
        for panel, axis in zip(panels, axes, strict=True):
            panel(axis, result)
        summary = result.summary
        figure.suptitle(
            f"{summary['experiment']}, {summary['method']}, budget {summary['budget']}, seed {summary['seed']}: "
            f"TIL {100 * summary['til']:.1f}, CIL {100 * summary['cil']:.1f}, "
            f"forgetting {100 * summary['forgetting']:.1f}",
            fontsize=10,
        )
        return save(figure, result.folder, "figure")


def _accuracy(axis: Axes, result: RunResult) -> None:
    history = result.history
    x = range(1, len(history) + 1)
    axis.plot(x, [100 * e.til for e in history], "o-", color=BLUE, label="TIL (task given)")
    styles = {"memory": ("s-", ORANGE), "scale": ("^--", GREEN), "none": ("v:", GREY)}
    for name in history[-1].by_calibration:
        marker, colour = styles.get(name, ("x-", GREY))
        values = [100 * e.by_calibration[name].cil for e in history]
        axis.plot(x, values, marker, color=colour, label=cil_label(name))
    axis.set(xlabel="tasks learned", ylabel="accuracy (%)", title="accuracy over all tasks so far", xticks=list(x))
    axis.set_ylim(min(axis.get_ylim()[0], 50), 101)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, loc="lower left")


def _confusion(axis: Axes, result: RunResult) -> None:
    confusion = result.history[-1].preferred.task_confusion
    names = [
        ", ".join(names) if len(", ".join(names)) < 12 else str(k + 1) for k, names in enumerate(result.class_names)
    ]
    axis.imshow(confusion, cmap="Blues", vmin=0, vmax=1)
    axis.set(title="which task was detected (%)", xlabel="detected", ylabel="true", xticks=range(len(names)))
    axis.set_yticks(range(len(names)), names)
    axis.set_xticklabels(names, rotation=45, ha="right")
    if len(names) <= 10:
        for i, row in enumerate(confusion):
            for j, value in enumerate(row):
                axis.text(
                    j, i, f"{100 * value:.0f}", ha="center", va="center", color="white" if value > 0.6 else "black"
                )


def _capacity(axis: Axes, result: RunResult) -> None:
    groups = list(result.tasks[-1].capacity)
    before = dict.fromkeys(groups, 0.0)
    shades = plt.get_cmap("viridis")
    for number, used in enumerate(used_shares(result.tasks)):
        opened = [100 * (used[group] - before[group]) for group in groups]
        shade = shades(number / max(1, len(result.tasks) - 1))
        axis.barh(
            groups, opened, left=[100 * before[group] for group in groups], color=shade, label=f"task {number + 1}"
        )
        before = used
    axis.invert_yaxis()
    axis.set(title="units in use, by the task that opened them", xlabel="% of the layer", xlim=(0, 100))
    if len(result.tasks) <= 10:
        axis.legend(frameon=False, fontsize=7, ncols=2, loc="lower right")
