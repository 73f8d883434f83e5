"""Making the blocks of separately trained tasks comparable: one scale and one shift per task.

A scale is positive and both are the same for all classes of a task, so no calibration ever changes a TIL answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.learning.loop import shuffled_batches
from clom.settings import Fraction, NonNegative, Positive, PositiveNumber, Settings


class CalibrationSettings(Settings):
    """How sigma and mu are fitted to the memory (Eq. 9)."""

    solver: Literal["exact", "sgd"] = "exact"
    """`exact` minimises over the whole memory; `sgd` is the paper's 160 iterations of batches of 32 at lr 0.01."""
    iterations: Positive = 160
    lr: PositiveNumber = 0.01
    batch: Positive = 32
    momentum: Fraction = 0.8
    prior: NonNegative = 1e-3
    """`exact`: pull of log sigma and mu towards the start, so that few samples cannot push them to infinity."""


class Affine:
    """`sigma_k f(h(x, k)) + mu_k` for every task k (Eq. 10)."""

    def __init__(self, scales: Tensor, shifts: Tensor) -> None:
        self.scales, self.shifts = scales, shifts

    @staticmethod
    def identity(n_tasks: int) -> Affine:
        return Affine(torch.ones(n_tasks), torch.zeros(n_tasks))

    def __call__(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        return [
            scale * block + shift
            for scale, shift, block in zip(self.scales.unbind(), self.shifts.unbind(), blocks, strict=True)
        ]


def fit_to_memory(
    blocks: Sequence[Tensor], labels: Tensor, settings: CalibrationSettings, randomness: torch.Generator
) -> Affine:
    """Minimise the cross-entropy over all classes seen so far (Eq. 9); `labels` count through all blocks.

    The blocks are constants: they are computed once, before. They are standardised first, which only moves the start.
    """
    if not len(labels):
        return Affine.identity(len(blocks))
    blocks = [block.double() for block in blocks]
    spreads = torch.stack([block.std(correction=0).clamp(min=1e-6) for block in blocks])
    centres = torch.stack([block.mean() for block in blocks])
    standard = Affine(1 / spreads, -centres / spreads)(blocks)
    log_scales = torch.zeros(len(blocks), dtype=torch.float64, requires_grad=True)
    shifts = torch.zeros(len(blocks), dtype=torch.float64, requires_grad=True)

    def loss(index: Tensor | slice) -> Tensor:
        calibrated = Affine(log_scales.exp(), shifts)([block[index] for block in standard])
        return F.cross_entropy(torch.cat(calibrated, 1), labels[index])

    if settings.solver == "sgd":
        optimiser = torch.optim.SGD([log_scales, shifts], lr=settings.lr, momentum=settings.momentum)
        done = 0
        while done < settings.iterations:
            for index in shuffled_batches(len(labels), settings.batch, randomness)[: settings.iterations - done]:
                optimiser.zero_grad()
                loss(index).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                done += 1
    else:
        solver = torch.optim.LBFGS([log_scales, shifts], max_iter=200, line_search_fn="strong_wolfe")

        def objective() -> Tensor:
            solver.zero_grad()
            value = loss(slice(None)) + settings.prior * (log_scales.pow(2).sum() + shifts.pow(2).sum())
            value.backward()  # type: ignore[no-untyped-call]
            return value

        solver.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scales = log_scales.exp() / spreads
        return Affine(scales.float(), (shifts - scales * centres).float())
