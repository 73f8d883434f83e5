"""One batch divided among several processes (ranks), with the result that one process would have.

A rank sends its part of a batch through the network, the expensive piece, and gets the features of all ranks back. What
comes behind (projection, heads, losses) is computed by every rank for the whole batch, so no loss needs to know about
ranks, and parts may differ in size. Random numbers are drawn for the whole batch by everybody, so the ranks' generators
stay equal. Without a process group all this is the plain computation.

The backward pass of a rank gives the gradient of the sum of all ranks' losses with respect to its own copy of the
weights. These losses are equal, so the mean of the ranks' gradients is the gradient of one process.

Tested by tests/learning/test_distributed.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clom.errors import UserError


class RankLost(UserError):
    """The others cannot be reached any more."""


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@dataclass(frozen=True)
class Part:
    """How many rows of a batch each rank takes, and which rank this is."""

    sizes: tuple[int, ...]
    rank: int

    @staticmethod
    def of(n_rows: int) -> Part:
        """Rows in order, in portions as equal as possible."""
        n_ranks = world_size()
        sizes = tuple(n_rows // n_ranks + (rank < n_rows % n_ranks) for rank in range(n_ranks))
        return Part(sizes, dist.get_rank())

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def rows(self) -> slice:
        ends = list(accumulate(self.sizes, initial=0))
        return slice(ends[self.rank], ends[self.rank + 1])


_part: ContextVar[Part | None] = ContextVar("part", default=None)
"""Set while a network computes its part: a scope, like `torch.no_grad`, that normalisation and dropout ask about."""


def split_over_ranks(compute: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """`compute(images)`, of which each rank computes its part; for what maps images to rows one by one but for
    `batch_norm` and `dropout` below."""
    if world_size() == 1 or len(images) < world_size():
        return compute(images)
    part = Part.of(len(images))
    scope = _part.set(part)
    try:
        own = compute(images[part.rows])
    finally:
        _part.reset(scope)
    return gather(own, part)


def gather(own: Tensor, part: Part) -> Tensor:
    """The rows of all ranks, in order; with gradients."""
    return cast(Tensor, _Gather.apply(own, part))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """Own rows among zeros, summed over the ranks: exact, also for parts of different size, which gloo's all_gather
    refuses.

    Every rank's loss may depend on these rows, so their gradient is the sum of what the ranks say.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, part: Part) -> Tensor:
        ctx.part = part
        rows = own.new_zeros(part.total, *own.shape[1:])
        rows[part.rows] = own
        return all_reduce_sum(rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(grad_outputs[0].clone(memory_format=torch.contiguous_format))[ctx.part.rows], None


def batch_norm(
    values: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """`F.batch_norm` with the statistics of the whole batch. (torch's SyncBatchNorm works on GPUs only.)"""
    part = _part.get()
    if part is None or not training:
        return F.batch_norm(values, running_mean, running_var, scale, shift, training, momentum, eps)
    pixels = values[0, 0].numel()
    weights = (torch.tensor(part.sizes, dtype=values.dtype)[:, None] / part.total).to(values.device)
    own_var, own_mean = torch.var_mean(values, (0, 2, 3), correction=0)
    one_row_each = Part((1,) * len(part.sizes), part.rank)
    means, variances = gather(torch.stack((own_mean, own_var))[None], one_row_each).unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    if running_mean is not None and running_var is not None:
        n = part.total * pixels
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (n / max(1, n - 1)), momentum)
    factor = torch.rsqrt(variance + eps)
    factor = factor if scale is None else factor * scale
    offset = -mean * factor if shift is None else shift - mean * factor
    return torch.addcmul(offset[:, None, None], values, factor[:, None, None])


def dropout(values: Tensor, p: float, training: bool) -> Tensor:
    """`F.dropout` of the whole batch: each rank draws for all rows and applies its own, which one process would too."""
    part = _part.get()
    if part is None or not training or not p:
        return F.dropout(values, p, training)
    like = torch.channels_last if values.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    noise = torch.empty(
        part.total, *values.shape[1:], dtype=values.dtype, device=values.device, memory_format=like
    ).bernoulli_(1 - p)
    return values * noise[part.rows].div_(1 - p)


@torch.no_grad()
def average_over_ranks(gradients: list[Tensor]) -> None:
    """Replace each gradient by its mean over the ranks, all in one message."""
    if world_size() == 1 or not gradients:
        return
    flat = all_reduce_sum(torch.cat([gradient.reshape(-1) for gradient in gradients])).div_(world_size())
    for gradient, mean in zip(gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def broadcast_state(module: nn.Module) -> None:
    """Give every rank the numbers of rank 0: different machines may round differently."""
    if world_size() == 1:
        return
    for value in module.state_dict().values():
        if value.numel():
            numbers = value.detach().clone(memory_format=torch.contiguous_format).flatten()
            collective(dist.broadcast, numbers.view(torch.uint8), 0)
            value.copy_(numbers.view_as(value))


def all_reduce_sum(values: Tensor) -> Tensor:
    """In place, the sum over the ranks."""
    collective(dist.all_reduce, values)
    return values


def collective(operation: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Do something that all ranks do together; if one of them is gone, say so."""
    try:
        operation(*arguments, **options)
    except RuntimeError as problem:
        reason = re.sub(r"^\[.*?\] ", "", str(problem)).partition(". ")[0]  # without the place in the library's source
        raise RankLost(
            f"Another process of this run has ended or cannot be reached ({reason}). Its own message says why; the "
            "same command goes on with the run."
        ) from problem
