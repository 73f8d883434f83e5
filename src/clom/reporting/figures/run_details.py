"""Detailed figures of one run, from its folder, and of augmentations.

| figure | shows |
|---|---|
| `capacity` | the share of each layer's units in use after each task |
| `auc-grid` | how well each task's model separates its own images from every other task's |
| `scores` | the underlying scores of own and other images |
| `augmentations` | what every augmentation does to an image (the paper's appendix) |

Tested by tests/reporting/figures/test_across_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from clom.data.images import to_unit
from clom.data.views import Augmentation, augment, rotate
from clom.errors import UserError
from clom.evaluation.metrics import auc_grid, max_logit, mean_auc
from clom.experiments.config import resolve
from clom.experiments.run import read_finished, read_results
from clom.learning.loop import generator
from clom.methods.families.base import Blocks
from clom.reporting.figures.style import BLACK, BLUE, RED, SKY, STYLE, panels, save
from clom.storage.score_file import read_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_capacity(folder: Path, out: Path) -> list[Path]:
    """Share of each gate group's units in use after each task."""
    config = read_finished(folder)
    history = [result.capacity for result in read_results(folder / "metrics.jsonl")]
    if not history[-1]:
        raise UserError(f"'{config.method}' has no gates, so {folder} has no capacity figure.")
    groups = list(history[-1])
    values = [[100 * after[group] for after in history] for group in groups]
    with plt.rc_context(STYLE):
        size = (2.6 + 0.45 * len(history), 1.5 + 0.28 * len(groups))
        figure, axis = plt.subplots(figsize=(max(4.2, size[0]), max(2.6, size[1])), layout="constrained")
        _heat_map(axis, values, low=0, high=100)
        axis.set_yticks(range(len(groups)), groups)
        axis.set_xticks(range(len(history)), [str(task + 1) for task in range(len(history))])
        axis.set(xlabel="tasks learned", title=f"{folder.name}\nunits in use (% of each layer)")
        return save(figure, out, f"capacity-{folder.name}")


def draw_auc_grid(folder: Path, out: Path) -> list[Path]:
    """Rows: a task's model; columns: the task whose test images it must separate from its own."""
    with plt.rc_context(STYLE):
        return save(auc_grid_figure(_read_blocks(folder), folder.name), out, f"auc-grid-{folder.name}")


def auc_grid_figure(blocks: Sequence[Blocks], title: str) -> Figure:
    """The figure of `draw_auc_grid`, from blocks `[test set][task model]`."""
    grid = auc_grid(blocks, max_logit)
    numbers = [str(task + 1) for task in range(len(grid))]
    with plt.rc_context(STYLE):
        side = 1.9 + 0.42 * len(grid)
        figure, axis = plt.subplots(figsize=(max(4.0, side + 0.4), max(3.4, side)), layout="constrained")
        shown = [[100 * value if i != j else None for j, value in enumerate(row)] for i, row in enumerate(grid)]
        worst = min((value for row in shown for value in row if value is not None), default=50.0)
        _heat_map(axis, shown, low=min(50.0, worst), high=100)  # 50 is chance; lower only if a model does worse
        axis.set_xticks(range(len(grid)), numbers)
        axis.set_yticks(range(len(grid)), numbers)
        axis.set(xlabel="images of task", ylabel="model of task")
        axis.set_title(f"{title}\nAUC of the largest score (%), mean {100 * mean_auc(grid):.1f}", fontsize=9)
        return figure


def draw_scores(folder: Path, out: Path) -> list[Path]:
    """One panel for each task's model: its largest scores for its own test images and for those of all other tasks."""
    blocks = _read_blocks(folder)
    tasks = range(len(blocks))
    with plt.rc_context(STYLE):
        figure, axes = panels(len(blocks), 2.9, 2.3, across=min(5, len(blocks)))
        for model, axis in zip(tasks, axes, strict=True):
            own = max_logit(blocks[model][model])
            others = torch.cat([max_logit(blocks[test][model]) for test in tasks if test != model] or [own[:0]])
            _histogram(axis, own, others)
            axis.set_title(f"model of task {model + 1}", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(f"{folder.name}: largest score of each model's block, before calibration", fontsize=10)
        return save(figure, out, f"scores-{folder.name}")


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
    """A heat map with annotated cells; darker is more."""
    shown = [[float("nan") if value is None else value for value in row] for row in values]
    axis.imshow(shown, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value is not None and (value - low) / (high - low) > 0.6
            text = "–" if value is None else f"{value:.0f}"
            axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else BLACK)


def _read_blocks(folder: Path) -> list[Blocks]:
    """`[test set][task model]` of a finished run."""
    read_finished(folder)
    return read_scores(folder / "scores.safetensors")


OF_RUNS: Mapping[str, Callable[[Path, Path], list[Path]]] = {
    "capacity": draw_capacity,
    "auc-grid": draw_auc_grid,
    "scores": draw_scores,
}


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
    with plt.rc_context(STYLE):
        figure, axes = panels(len(views), 1.6, 1.75, across=4)
        for axis, (name, view) in zip(axes, views.items(), strict=True):
            axis.imshow(view[0].permute(1, 2, 0).numpy(), interpolation="nearest", vmin=0, vmax=1)
            axis.set_title(name, fontsize=9)
            axis.set_axis_off()
        return save(figure, out, "augmentations")


def _differing(image: Tensor, augmentation: Augmentation, seed: int, wanted: Callable[[Tensor], bool]) -> Tensor:
    """The first random view that differs from the image and is of the wanted kind."""
    random = generator(seed, "figure of augmentations")
    while True:
        view = augment(image, augmentation, random)
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
    source = resolve(experiment).data
    if not source.available(data):
        raise UserError(f"The data set '{source.name}' is not on this machine. --data names another folder.")
    image = to_unit(source.load(data).test.pixels[:1])
    return image.expand(-1, 3, -1, -1)
