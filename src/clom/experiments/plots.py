"""Figures over many runs, from the ledger, and closer looks at single runs, from their folders.

| figure | from | shows |
|---|---|---|
| `forgetting` | ledger | what each method lost of earlier tasks (the paper's Fig. 2) |
| `til-curves`, `cil-curves` | ledger | accuracy after each task (appendix); dashed: keeps no samples |
| `augmentations` | an image | what every augmentation does to it (appendix) |
| `capacity` | run | how full each layer is after each task |
| `auc-grid` | run | how well each task's model tells its own images from every other task's |
| `scores` | run | the scores behind that, own images and others |

Colours are Okabe and Ito's, told apart by colour-blind readers; every line has a marker of its own and every heat map
gets darker with its numbers, so that print in black and white says the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import torch
from torch import Tensor

from clom.data import catalog
from clom.data.images import to_unit
from clom.data.views import Augmentation, augment, rotate
from clom.errors import UserError
from clom.evaluation.metrics import auc_grid, max_logit, mean_auc
from clom.experiments.comparison import (
    BOUNDS,
    TIL_SYSTEMS,
    Results,
    experiment_label,
    method_label,
    method_order,
    number_of,
)
from clom.experiments.ledger import Row
from clom.experiments.names import read_experiment
from clom.experiments.run import read_finished
from clom.learning.loop import generator
from clom.model.store import read_tensors

matplotlib.use("Agg")  # no screen needed
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
_LINES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)  # black is CLOM's alone; yellow lines are too faint on white
_MARKERS = "osD^vPX*<>phd8H+x1234"
_STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "clom"}


def _save(figure: Figure, out: Path, name: str) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.svg", out / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=160)
    plt.close(figure)
    return paths


def _panels(count: int, width: float, height: float, across: int = 3) -> tuple[Figure, list[Axes]]:
    """So many panels in rows of at most `across`; unused places stay empty."""
    columns = min(across, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_axis_off()
    return figure, flat[:count]


# --- from the ledger -------------------------------------------------------------------------------------------------


def draw_forgetting(results: Results, experiments: Sequence[str], out: Path) -> list[Path]:
    """Bars by method, one panel for each experiment; CIL systems, TIL systems, CLOM's own and bounds look different."""
    kinds = {
        "CLOM": (BLACK, ""),
        "TIL systems": (ORANGE, "///"),
        "CIL systems": (SKY, "..."),
        "bounds": ("#FFFFFF", ""),
    }
    chosen = _with_rows(results, experiments)
    methods = [name for name in method_order() if any(results.plain(experiment, name) for experiment in chosen)]
    with plt.rc_context(_STYLE):
        figure, axes = _panels(len(chosen), 4.4 if len(chosen) > 1 else 5.6, 1.3 + 0.22 * len(methods))
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
        return _save(figure, out, f"forgetting-{results.budget}")


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
    axis.grid(axis="x", alpha=0.25)


def _kind(method: str) -> str:
    if method in BOUNDS:
        return "bounds"
    if method in TIL_SYSTEMS:
        return "TIL systems"
    return "CLOM" if method.startswith("clom") else "CIL systems"


def draw_curves(results: Results, measure: Literal["til", "cil"], experiments: Sequence[str], out: Path) -> list[Path]:
    """Accuracy over all classes so far, after each task; CLOM(-c) is left out of TIL, where it is CLOM."""
    chosen = _with_rows(results, experiments)
    curves = {experiment: _curves(results, experiment, measure) for experiment in chosen}
    methods = [name for name in method_order() if any(name in found for found in curves.values())]
    with plt.rc_context(_STYLE):
        figure, axes = _panels(len(chosen), 4.6 if len(chosen) > 1 else 6.8, 4.4)
        for axis, experiment in zip(axes, chosen, strict=True):
            classes = read_experiment(experiment)["size"]["classes"]
            for method, curve in curves[experiment].items():
                x = [classes * (task + 1) / len(curve.means) for task in range(len(curve.means))]
                axis.plot(x, curve.means, **_look(method, curve.keeps_samples))
            axis.set(title=experiment_label(experiment), xlabel="classes learned", ylabel=f"{measure.upper()} (%)")
            axis.grid(alpha=0.25)
        looks = {m: _look(m, any(c[m].keeps_samples for c in curves.values() if m in c)) for m in methods}
        handles = [Line2D([], [], **looks[method], label=_curve_label(method, measure)) for method in methods]
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8, handlelength=3.4)
        figure.suptitle(
            f"{measure.upper()} while learning, budget {results.budget}; dashed: keeps no samples", fontsize=10
        )
        return _save(figure, out, f"{measure}-curves-{results.budget}")


@dataclass(frozen=True)
class _Curve:
    means: list[float]
    """Percent, over the seeds, after each task."""
    keeps_samples: bool


def _curves(results: Results, experiment: str, measure: str) -> dict[str, _Curve]:
    found = {}
    for method in method_order():
        if measure == "til" and method == "clom-no-calibration" and results.plain(experiment, "clom"):
            continue
        rows = [row for row in results.plain(experiment, method) if row.by_task.get(measure)]
        if rows:
            means = [100 * fmean(after) for after in zip(*(row.by_task[measure] for row in rows), strict=True)]
            found[method] = _Curve(means, any(row.figures.get("memory_bytes") for row in rows))
    return found


def _curve_label(method: str, measure: str) -> str:
    return "CLOM, CLOM(-c)" if measure == "til" and method == "clom" else method_label(method)


def _look(method: str, keeps_samples: bool) -> dict[str, Any]:
    """The same for a method in every figure: colours come round again, markers do not."""
    place = method_order().index(method)
    colour = BLACK if method == "clom" else _LINES[place % len(_LINES)]
    return {
        "color": colour,
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": "-" if keeps_samples else (0, (5, 2)),
        "linewidth": 2.6 if method == "clom" else 1.2,
        "markersize": 5,
        "markerfacecolor": colour if keeps_samples else "white",
    }


def _with_rows(results: Results, experiments: Sequence[str]) -> list[str]:
    chosen = [name for name in (experiments or results.experiments()) if results.methods(name)]
    if not chosen:
        raise UserError(f"The ledger has no runs of the plain recipe for this figure at budget '{results.budget}'.")
    return chosen


# --- one image -------------------------------------------------------------------------------------------------------


def draw_augmentations(out: Path, experiment: str | None = None, data: Path | None = None, seed: int = 0) -> list[Path]:
    """An image and one view of it for every augmentation; without an experiment scikit-learn's photo of a flower."""
    image = _flower() if experiment is None else _first_image(experiment, data)
    views = {
        "original": image,
        "Hflip": image.flip(3),
        "color jitter": _differing(
            image, Augmentation(flip=False, crop=False), seed, lambda view: _grey(image) or not _grey(view)
        ),
        "grayscale": image.mul(torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1))
        .sum(1, keepdim=True)
        .expand_as(image),
        "crop": _differing(image, Augmentation(flip=False, colour=False), seed, lambda view: True),
        **{f"rotation {90 * turns}°": rotate(image, turns) for turns in (1, 2, 3)},
    }
    with plt.rc_context(_STYLE):
        figure, axes = _panels(len(views), 1.6, 1.75, across=4)
        for axis, (name, view) in zip(axes, views.items(), strict=True):
            axis.imshow(view[0].permute(1, 2, 0).numpy(), interpolation="nearest", vmin=0, vmax=1)
            axis.set_title(name, fontsize=9)
            axis.set_axis_off()
        return _save(figure, out, "augmentations")


def _differing(image: Tensor, how: Augmentation, seed: int, wanted: Callable[[Tensor], bool]) -> Tensor:
    """A random view that shows something: the first that is not the image itself and is of the wanted kind."""
    random = generator(seed, "figure of augmentations")
    while True:
        view = augment(image, how, random)
        if not torch.equal(view, image) and wanted(view):
            return view


def _grey(view: Tensor) -> bool:
    return bool((view - view.mean(1, keepdim=True)).abs().amax() < 1e-3)


def _flower() -> Tensor:
    from sklearn.datasets import load_sample_image

    photo = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)[None]
    side = min(photo.shape[2:])
    left = (photo.shape[3] - side) // 2
    square = to_unit(photo[:, :, :side, left : left + side])
    return torch.nn.functional.interpolate(square, size=(96, 96), mode="area")


def _first_image(experiment: str, data: Path | None) -> Tensor:
    name = read_experiment(experiment)["data"]["set"]
    if not catalog.available(name, data):
        raise UserError(f"The data set '{name}' is not on this machine. --data names another folder.")
    image = to_unit(catalog.load(name, data).test.pixels[:1])
    return image.expand(-1, 3, -1, -1)


# --- from a run's folder ---------------------------------------------------------------------------------------------


def draw_capacity(folder: Path, out: Path) -> list[Path]:
    """Share of each gate group's units in use after each task."""
    config = read_finished(folder)
    history = [json.loads(line)["capacity"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    if not history[-1]:
        raise UserError(f"'{config.method}' has no gates, so there is no capacity to show of {folder}.")
    groups = list(history[-1])
    values = [[100 * after[group] for after in history] for group in groups]
    with plt.rc_context(_STYLE):
        size = (2.6 + 0.45 * len(history), 1.5 + 0.28 * len(groups))
        figure, axis = plt.subplots(figsize=(max(4.2, size[0]), max(2.6, size[1])), layout="constrained")
        _heat_map(axis, values, low=0, high=100)
        axis.set_yticks(range(len(groups)), groups)
        axis.set_xticks(range(len(history)), [str(task + 1) for task in range(len(history))])
        axis.set(xlabel="tasks learned", title=f"{folder.name}\nunits in use (% of each layer)")
        return _save(figure, out, f"capacity-{folder.name}")


def draw_auc_grid(folder: Path, out: Path) -> list[Path]:
    """Row: a task's model, column: the task whose test images it must tell from its own."""
    blocks = _read_blocks(folder)
    grid = auc_grid(blocks, max_logit)
    numbers = [str(task + 1) for task in range(len(grid))]
    with plt.rc_context(_STYLE):
        side = 1.9 + 0.42 * len(grid)
        figure, axis = plt.subplots(figsize=(max(4.0, side + 0.4), max(3.4, side)), layout="constrained")
        shown = [[100 * value if i != j else None for j, value in enumerate(row)] for i, row in enumerate(grid)]
        worst = min((value for row in shown for value in row if value is not None), default=50.0)
        _heat_map(axis, shown, low=min(50.0, worst), high=100)  # 50 is chance; lighter only where a model does worse
        axis.set_xticks(range(len(grid)), numbers)
        axis.set_yticks(range(len(grid)), numbers)
        axis.set(xlabel="images of task", ylabel="model of task")
        axis.set_title(f"{folder.name}\nAUC of the largest score (%), mean {100 * mean_auc(grid):.1f}", fontsize=9)
        return _save(figure, out, f"auc-grid-{folder.name}")


def draw_scores(folder: Path, out: Path) -> list[Path]:
    """One panel for each task's model: its largest scores for its own test images and for those of all other tasks."""
    blocks = _read_blocks(folder)
    tasks = range(len(blocks))
    with plt.rc_context(_STYLE):
        figure, axes = _panels(len(blocks), 2.9, 2.3, across=min(5, len(blocks)))
        for model, axis in zip(tasks, axes, strict=True):
            own = max_logit(blocks[model][model])
            others = torch.cat([max_logit(blocks[test][model]) for test in tasks if test != model] or [own[:0]])
            _histogram(axis, own, others)
            axis.set_title(f"model of task {model + 1}", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(f"{folder.name}: largest score of each model's block, before calibration", fontsize=10)
        return _save(figure, out, f"scores-{folder.name}")


def _histogram(axis: Axes, own: Tensor, others: Tensor) -> None:
    everything = torch.cat([own, others]).float()
    low, high = float(everything.min()), float(everything.max())
    edges = torch.linspace(low, high if high > low else low + 1, 31).tolist()
    axis.hist(own.tolist(), edges, density=True, color=SKY, edgecolor=BLUE, linewidth=0.5, label="its own test images")
    if len(others):
        axis.hist(
            others.tolist(), edges, density=True, histtype="step", hatch="////", edgecolor=RED, linewidth=1.4,
            label="test images of the other tasks",
        )  # fmt: skip
    axis.set(yticks=[], xlabel="largest score")
    axis.spines["left"].set_visible(False)


def _heat_map(axis: Axes, values: Sequence[Sequence[float | None]], low: float, high: float) -> None:
    """Darker is more; every field says its number, unless there are too many."""
    shown = [[float("nan") if value is None else value for value in row] for row in values]
    axis.imshow(shown, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value is not None and (value - low) / (high - low) > 0.6
            text = "–" if value is None else f"{value:.0f}"
            axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else BLACK)


def _read_blocks(folder: Path) -> list[list[Tensor]]:
    """`[test set][task model]` of a finished run."""
    read_finished(folder)
    tensors, _ = read_tensors(folder / "scores.safetensors")
    n_tasks = len({name.partition(".")[0] for name in tensors})
    return [[tensors[f"{model}.{test}"] for model in range(n_tasks)] for test in range(n_tasks)]


# --- by name ---------------------------------------------------------------------------------------------------------

OF_RUNS: Mapping[str, Callable[[Path, Path], list[Path]]] = {
    "capacity": draw_capacity,
    "auc-grid": draw_auc_grid,
    "scores": draw_scores,
}


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
