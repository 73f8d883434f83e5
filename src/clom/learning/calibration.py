"""Calibration makes the logits of separately trained tasks comparable: one scale and one shift per task.

Scales are positive, and scale and shift are shared by all classes of a task, so calibration never changes a TIL
prediction. With cross-task calibration (`cross_task`), which is not in the paper, the shift also depends on the image
through the logits of all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from clom.learning.loop import shuffled_batches
from clom.settings import Fraction, NonNegative, Positive, PositiveNumber, Settings

SMALLEST_SCALE = 1e-3
"""What `solver: paper` may lower sigma to."""


class CalibrationSettings(Settings):
    """How sigma and mu are fitted to the replay buffer (Eq. 9)."""

    former_names: ClassVar[Mapping[str, str]] = {"cross": "cross_task"}
    solver: Literal["exact", "sgd", "paper"] = "exact"
    """`exact` minimises over the whole buffer. `paper` is the paper's SGD on sigma and mu: 160 iterations of batches of
    32 at lr 0.01. `sgd` takes as many steps on log sigma and mu of standardised logits."""
    iterations: Annotated[Positive, Field(le=10_000)] = 160
    """At most 10,000: `forget` fits again, and a model file of a stranger must not keep it busy."""
    lr: PositiveNumber = 0.01
    batch: Positive = 32
    momentum: Fraction = 0.8
    """Of the authors' code; the paper does not state it."""
    prior: NonNegative = 1e-3
    """`exact`: L2 penalty on log sigma and mu, which keeps them finite when there are few samples."""
    cross_task: PositiveNumber | None = None
    """`exact`: cross-task calibration, with this L2 penalty on its weights: a task's shift also depends linearly on the
    logits of all tasks. Off by default, as in the paper."""

    @model_validator(mode="after")
    def _cross_task_needs_exact_solver(self) -> Self:
        if self.cross_task is not None and self.solver != "exact":
            raise ValueError("cross_task needs solver: exact")
        return self


class Affine:
    """`sigma_k f(h(x, k)) + mu_k` for every task k (Eq. 10). `cross_task [tasks, classes]` adds `cross_task_k f(x)`,
    where f(x) concatenates the logits of all tasks."""

    def __init__(self, scales: Tensor, shifts: Tensor, cross_task: Tensor | None = None) -> None:
        self.scales, self.shifts, self.cross_task = scales, shifts, cross_task

    @staticmethod
    def identity(n_tasks: int) -> Affine:
        return Affine(torch.ones(n_tasks), torch.zeros(n_tasks))

    def __call__(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        calibrated = [
            scale * block + shift
            for scale, shift, block in zip(self.scales.unbind(), self.shifts.unbind(), blocks, strict=True)
        ]
        if self.cross_task is None or not blocks:
            return calibrated
        shifts = torch.cat(list(blocks), 1) @ self.cross_task.to(blocks[0].dtype).T
        return [block + shifts[:, [task]] for task, block in enumerate(calibrated)]

    def to(self, device: torch.device) -> Affine:
        cross_task = None if self.cross_task is None else self.cross_task.to(device)
        return Affine(self.scales.to(device), self.shifts.to(device), cross_task)

    def for_task(self, task: int) -> Affine:
        """The calibration of one task's block alone; cross-task terms, equal for all its classes, are left out."""
        return Affine(self.scales[[task]], self.shifts[[task]])


def fit_to_memory(
    blocks: Sequence[Tensor], labels: Tensor, settings: CalibrationSettings, randomness: torch.Generator
) -> Affine:
    """Minimise the cross-entropy over all classes seen so far (Eq. 9); `labels` index the concatenated blocks.

    The blocks are constant inputs. Except by `solver: paper` they are standardised first.
    """
    if not len(labels):
        return Affine.identity(len(blocks))
    # On the CPU: a tiny problem whose solver reads every value, in float64, which some devices do not support.
    blocks, labels = [block.cpu().double() for block in blocks], labels.cpu()
    if settings.solver == "paper":
        return _fit_as_in_the_paper(blocks, labels, settings, randomness)
    spreads = torch.stack([block.std(correction=0).clamp(min=1e-6) for block in blocks])
    centres = torch.stack([block.mean() for block in blocks])
    standardised = Affine(1 / spreads, -centres / spreads)(blocks)
    log_scales = torch.zeros(len(blocks), dtype=torch.float64, requires_grad=True)
    shifts = torch.zeros(len(blocks), dtype=torch.float64, requires_grad=True)
    sizes = torch.tensor([block.shape[1] for block in blocks])
    cross_task = None
    if settings.cross_task is not None:
        cross_task = torch.zeros(len(blocks), int(sizes.sum()), dtype=torch.float64, requires_grad=True)

    def loss(index: Tensor | slice) -> Tensor:
        calibrated = Affine(log_scales.exp(), shifts, cross_task)([block[index] for block in standardised])
        return F.cross_entropy(torch.cat(calibrated, 1), labels[index])

    if settings.solver == "sgd":
        optimiser = torch.optim.SGD([log_scales, shifts], lr=settings.lr, momentum=settings.momentum)
        batches = _repeated(lambda: shuffled_batches(len(labels), settings.batch, randomness))
        for index in islice(batches, settings.iterations):
            optimiser.zero_grad()
            loss(index).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    else:
        fitted = [log_scales, shifts] if cross_task is None else [log_scales, shifts, cross_task]
        solver = torch.optim.LBFGS(fitted, max_iter=200, line_search_fn="strong_wolfe")

        def objective() -> Tensor:
            solver.zero_grad()
            value = loss(slice(None)) + settings.prior * (log_scales.pow(2).sum() + shifts.pow(2).sum())
            if cross_task is not None and settings.cross_task is not None:
                value = value + settings.cross_task * cross_task.pow(2).sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        solver.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scales = log_scales.exp() / spreads
        shifts = shifts - scales * centres
        if cross_task is None:
            return Affine(scales.float(), shifts.float())
        cross_task = cross_task / spreads.repeat_interleave(sizes)  # in terms of the original logits
        shifts = shifts - cross_task @ centres.repeat_interleave(sizes)
        return Affine(scales.float(), shifts.float(), cross_task.float())


def _fit_as_in_the_paper(
    blocks: Sequence[Tensor], labels: Tensor, settings: CalibrationSettings, randomness: torch.Generator
) -> Affine:
    """SGD on sigma and mu, from sigma = 1 and mu = 0. Sigma is kept positive, so that TIL predictions do not change."""
    scales = torch.ones(len(blocks), dtype=torch.float64, requires_grad=True)
    shifts = torch.zeros(len(blocks), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([scales, shifts], lr=settings.lr, momentum=settings.momentum)
    batches = _repeated(lambda: torch.split(torch.randperm(len(labels), generator=randomness), settings.batch))
    for index in islice(batches, settings.iterations):
        calibrated = Affine(scales, shifts)([block[index] for block in blocks])
        optimiser.zero_grad()
        F.cross_entropy(torch.cat(calibrated, 1), labels[index]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        scales.data.clamp_(min=SMALLEST_SCALE)
    return Affine(scales.detach().float(), shifts.detach().float())


def _repeated(epoch: Callable[[], Sequence[Tensor]]) -> Iterator[Tensor]:
    """The batches of epoch after epoch."""
    while True:
        yield from epoch()
