"""Data parallelism: a batch split over several processes (ranks), with the same result as in one process.

Each rank runs its slice of a batch through the network, the expensive step, and then gathers the features of all ranks.
Everything after that (projection, heads, losses) is computed by every rank on the whole batch, so losses need not know
about ranks, and slices may differ in size. Every rank draws the random numbers of the whole batch, so the ranks'
generators stay in sync. Without a process group, everything here is the ordinary computation.

The backward pass of a rank yields the gradient of the sum of all ranks' losses with respect to its own copy of the
weights. These losses are equal, so the mean of the ranks' gradients is the gradient of a single process.

Tested by tests/learning/test_distributed.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.precision import autocast_network


class RankLost(UserError):
    """Another rank has died or can no longer be reached."""


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@dataclass(frozen=True)
class BatchSlice:
    """The number of rows of a batch that each rank processes, and this process's rank."""

    sizes: tuple[int, ...]
    rank: int

    @staticmethod
    def of(n_rows: int) -> BatchSlice:
        """Consecutive slices, as equal in size as possible."""
        n_ranks = world_size()
        sizes = tuple(n_rows // n_ranks + (rank < n_rows % n_ranks) for rank in range(n_ranks))
        return BatchSlice(sizes, dist.get_rank())

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def rows(self) -> slice:
        ends = list(accumulate(self.sizes, initial=0))
        return slice(ends[self.rank], ends[self.rank + 1])


_batch_slice: ContextVar[BatchSlice | None] = ContextVar("batch_slice", default=None)
"""Set while the network processes this rank's slice: a scope, like `torch.no_grad`, read by batch norm and dropout."""


def _current_slice() -> BatchSlice | None:
    """The slice that the network processes; None if the batch is not split."""
    return _batch_slice.get() if world_size() > 1 else None  # torch.compile cannot trace a ContextVar


def split_over_ranks(compute: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """`compute(images)`, with each rank computing its own slice of the batch.

    `compute` must treat images independently, except in the `batch_norm` and `dropout` of this module.
    """
    if world_size() == 1 or len(images) < world_size():
        return autocast_network(compute, images)
    batch_slice = BatchSlice.of(len(images))
    scope = _batch_slice.set(batch_slice)
    try:
        own = autocast_network(compute, images[batch_slice.rows])
    finally:
        _batch_slice.reset(scope)
    return gather(own, batch_slice)


def rows_of_batch(images: Tensor) -> int:
    """The number of rows of the batch, of all ranks if `images` is this rank's slice."""
    batch_slice = _batch_slice.get()
    return len(images) if batch_slice is None else batch_slice.total


@contextmanager
def unsplit() -> Iterator[None]:
    """Within the context, a batch is not a slice of a larger one."""
    scope = _batch_slice.set(None)
    try:
        yield
    finally:
        _batch_slice.reset(scope)


def gather(own: Tensor, batch_slice: BatchSlice) -> Tensor:
    """All-gather the rows of all ranks, in order; differentiable."""
    return cast(Tensor, _Gather.apply(own, batch_slice))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """All-reduce of a tensor that is zero outside the rank's own rows: exact, and slices may differ in size, which
    gloo's all_gather does not allow.

    Every rank's loss may depend on these rows, so their gradient is the sum of all ranks' gradients.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, batch_slice: BatchSlice) -> Tensor:
        ctx.batch_slice = batch_slice
        rows = own.new_zeros(batch_slice.total, *own.shape[1:])
        rows[batch_slice.rows] = own
        return all_reduce_sum(rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(grad_outputs[0].clone(memory_format=torch.contiguous_format))[ctx.batch_slice.rows], None


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
    """`F.batch_norm` with the statistics of the whole batch (torch's SyncBatchNorm needs GPUs)."""
    batch_slice = _current_slice()
    if batch_slice is None or not training:
        return F.batch_norm(values, running_mean, running_var, scale, shift, training, momentum, eps)
    pixels = values[0, 0].numel()
    weights = (torch.tensor(batch_slice.sizes, dtype=values.dtype)[:, None] / batch_slice.total).to(values.device)
    own_var, own_mean = torch.var_mean(values, (0, 2, 3), correction=0)
    one_row_each = BatchSlice((1,) * len(batch_slice.sizes), batch_slice.rank)
    means, variances = gather(torch.stack((own_mean, own_var))[None], one_row_each).unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    if running_mean is not None and running_var is not None:
        n = batch_slice.total * pixels
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (n / max(1, n - 1)), momentum)
    factor = torch.rsqrt(variance + eps)
    factor = factor if scale is None else factor * scale
    offset = -mean * factor if shift is None else shift - mean * factor
    return torch.addcmul(offset[:, None, None], values, factor[:, None, None])


def dropout(values: Tensor, p: float, training: bool) -> Tensor:
    """`F.dropout` of the whole batch: each rank draws the noise of all rows and applies that of its own rows."""
    batch_slice = _current_slice()
    if batch_slice is None or not training or not p:
        return F.dropout(values, p, training)
    like = torch.channels_last if values.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    noise = torch.empty(
        batch_slice.total, *values.shape[1:], dtype=values.dtype, device=values.device, memory_format=like
    ).bernoulli_(1 - p)
    return values * noise[batch_slice.rows].div_(1 - p)


@torch.no_grad()
def average_over_ranks(gradients: list[Tensor]) -> None:
    """Replace each gradient by its mean over the ranks, in a single all-reduce."""
    if world_size() == 1 or not gradients:
        return
    flat = all_reduce_sum(torch.cat([gradient.reshape(-1) for gradient in gradients])).div_(world_size())
    for gradient, mean in zip(gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def broadcast_state(module: nn.Module) -> None:
    """Broadcast the state of rank 0 to all ranks: different machines may round differently."""
    if world_size() == 1:
        return
    for value in module.state_dict().values():
        if value.numel():
            numbers = value.detach().clone(memory_format=torch.contiguous_format).flatten()
            _communicate(dist.broadcast, numbers.view(torch.uint8), 0)
            value.copy_(numbers.view_as(value))


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum over the ranks, in place."""
    _communicate(dist.all_reduce, values)
    return values


def _communicate(operation: Callable[..., Any], values: Tensor, *arguments: Any) -> None:
    """A collective operation in place: by gloo on the CPU, by NCCL on CUDA; other devices go through the CPU."""
    direct = values.device.type in ("cpu", "cuda")
    host = values if direct else values.cpu()
    collective(operation, host, *arguments)
    if not direct:
        values.copy_(host)


def collective(operation: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run a collective operation; raise `RankLost` if another rank cannot be reached."""
    try:
        operation(*arguments, **options)
    except RuntimeError as problem:
        reason = re.sub(r"^\[.*?\] ", "", str(problem)).partition(". ")[0]  # without the library's source location
        raise RankLost(
            f"Another process of this run has ended or cannot be reached ({reason}); see its own error message. The "
            "same command resumes the run."
        ) from problem
