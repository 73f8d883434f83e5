"""Data-parallel training in several processes, on one machine or many, started by torchrun.

Every process executes the whole run: the same tasks, batches, views and random numbers. Only the passes through the
network, where the time goes, are split (`clom.nets.data_parallel`), and gradients are averaged before each step, so all
processes take the same step. Compared with DistributedDataParallel, there is no need to know in advance which
parameters a task trains, masks and frozen parameters need no special handling, and every loss equals that of a single
process, however the batch is split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist
from torch.optim import Optimizer

from clom.errors import UserError
from clom.launch import Launch
from clom.nets import data_parallel


def average_gradients(optimiser: Optimizer) -> None:
    """Call after the backward pass: gradients become those of a single process."""
    if data_parallel.world_size() > 1:
        parameters = (parameter for group in optimiser.param_groups for parameter in group["params"])
        data_parallel.average_over_ranks([parameter.grad for parameter in parameters if parameter.grad is not None])


@contextmanager
def session(launch: Launch) -> Iterator[None]:
    """Join the process group of `launch` inside the `with` block; do nothing for a single process."""
    if launch.size == 1:
        yield
        return
    _join(launch)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _join(launch: Launch) -> None:
    if not dist.is_available() or not dist.is_gloo_available():
        raise UserError(
            "This build of torch has no gloo backend for distributed runs. Install another build, or run one process."
        )
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError, OSError) as problem:  # torch's own network errors are RuntimeErrors
        reason = str(problem).splitlines()[0]
        raise UserError(
            f"Process {launch.rank} of {launch.size} could not join the process group with {backend} ({reason}). All "
            "processes must reach the address and port given to torchrun; GLOO_SOCKET_IFNAME selects the network "
            "interface."
        ) from problem


def require_same(what: str, fingerprint: bytes) -> None:
    """Raise unless all processes have the same `what`: otherwise they would train on a mixture, or hang."""
    if data_parallel.world_size() == 1:
        return
    number = int.from_bytes(hashlib.sha256(fingerprint).digest()[:7], "big")
    extremes = torch.tensor([number, -number])
    data_parallel.collective(dist.all_reduce, extremes, dist.ReduceOp.MAX)
    if extremes.sum() != 0:
        raise UserError(f"The processes of this run do not have the same {what}. Use the same on every machine.")
