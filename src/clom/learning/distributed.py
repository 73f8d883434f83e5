"""Training in several processes, on one machine or many, started by torchrun.

Every process does the whole run: the same tasks, batches, views and random numbers. Only the passes through the
network, which is where the time goes, are divided (`clom.nets.data_parallel`), and gradients are averaged before each
step, so all processes take the same step. Compared with wrapping the network in DistributedDataParallel, nothing has to
be known in advance about which parameters a task trains, masks and frozen tasks need no care, and every loss is the one
of a single process, however the batch was divided.
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
    """After the backward pass: the gradients that one process would have."""
    if data_parallel.world_size() > 1:
        parameters = (parameter for group in optimiser.param_groups for parameter in group["params"])
        data_parallel.average_over_ranks([parameter.grad for parameter in parameters if parameter.grad is not None])


@contextmanager
def session(launch: Launch) -> Iterator[None]:
    """Work together with the other processes of `launch` for a while; alone if there are none."""
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
        raise UserError("This build of torch cannot connect processes (no gloo). Install another, or run one process.")
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"  # each tensor by way of what suits where it is
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError, OSError) as problem:  # torch's own errors of the network are RuntimeErrors
        reason = str(problem).splitlines()[0]
        raise UserError(
            f"Process {launch.rank} of {launch.size} could not meet the others by way of {backend} ({reason}). All "
            "must reach the address and port that torchrun was given; GLOO_SOCKET_IFNAME names the network to use."
        ) from problem


def require_same(what: str, fingerprint: bytes) -> None:
    """Go on only if all processes have the same `what`: anything else would train on a mixture, or hang."""
    if data_parallel.world_size() == 1:
        return
    number = int.from_bytes(hashlib.sha256(fingerprint).digest()[:7], "big")
    extremes = torch.tensor([number, -number])
    data_parallel.collective(dist.all_reduce, extremes, dist.ReduceOp.MAX)
    if extremes.sum() != 0:
        raise UserError(f"The processes of this run do not have the same {what}. All need the same, on every machine.")
