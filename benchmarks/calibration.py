"""Fitting the calibration to the memory, and the AUC grid: computations on existing scores."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.measure import Figure, figure, interleaved
from clom.evaluation.metrics import auc_grid, max_logit
from clom.learning.calibration import CalibrationSettings, fit_to_memory
from clom.methods.families.base import Blocks

LIMIT = 2.0


def scores(n_tasks: int, n_classes: int, per_class: int) -> tuple[Blocks, Tensor]:
    """Blocks of differently scaled tasks with a slightly higher score of the true class, and the global labels."""
    randomness = torch.Generator().manual_seed(0)
    labels = torch.arange(n_tasks * n_classes).repeat_interleave(per_class)
    everything = torch.randn(len(labels), n_tasks * n_classes, generator=randomness)
    everything[torch.arange(len(labels)), labels] += 2
    sizes = torch.rand(n_tasks, generator=randomness) * 3 + 0.2
    return [size * block for size, block in zip(sizes, torch.split(everything, n_classes, 1), strict=True)], labels


def calibration_figures(quick: bool = False) -> list[Figure]:
    n_tasks, n_classes, per_class = (3, 2, 5) if quick else (10, 10, 20)
    blocks, labels = scores(n_tasks, n_classes, per_class)
    group = f"calibration, {n_tasks} tasks of {n_classes} classes, {per_class} samples a class"
    solvers = {"solved": CalibrationSettings(), "the paper's 160 iterations": CalibrationSettings(solver="paper")}
    variants = {
        name: lambda solver=solver: fit_to_memory(blocks, labels, solver, torch.Generator().manual_seed(0))
        for name, solver in solvers.items()
    }
    times = interleaved(variants, rounds=2 if quick else 9)
    return [figure(group, name, taken, "s", at_most=LIMIT) for name, taken in times.items()]


def auc_figures(quick: bool = False) -> list[Figure]:
    found = []
    for n_tasks, per_class in ((3, 5),) if quick else ((5, 200), (10, 100), (20, 50)):
        n_classes = 10
        blocks, _ = scores(n_tasks, n_classes, per_class)
        size = n_classes * per_class
        by_test = [[block[test * size : (test + 1) * size] for block in blocks] for test in range(n_tasks)]
        name = f"T = {n_tasks}, {size} images a test set"
        times = interleaved({name: lambda by_test=by_test: auc_grid(by_test, max_logit)}, 2 if quick else 5)  # type: ignore[misc]
        found.append(figure("AUC grid, one score", name, times[name], "s"))
    return found
