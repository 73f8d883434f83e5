"""Torch's global random states on the CPU and an accelerator, from which initial weights and dropout are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def get_random_states(device: torch.device | None = None) -> Tensor | list[Tensor]:
    """The CPU's random state; for an accelerator with its own generator, a list of both."""
    accelerator = _generator_of(device)
    cpu = torch.get_rng_state()
    return cpu if accelerator is None else [cpu, accelerator.get_rng_state(device).cpu()]


def set_random_states(states: Tensor | list[Tensor], device: torch.device | None = None) -> None:
    """Restore the result of `get_random_states`; states of other device types are ignored."""
    cpu, *others = [states] if isinstance(states, Tensor) else states
    torch.set_rng_state(cpu.cpu())
    accelerator = _generator_of(device)
    if accelerator is not None and others:
        accelerator.set_rng_state(others[0].cpu(), device)


@contextmanager
def fork_random_states(device: torch.device | None = None) -> Iterator[None]:
    """Restore the random states on exit, so that drawing or seeding inside has no effect outside."""
    before = get_random_states(device)
    try:
        yield
    finally:
        set_random_states(before, device)


def _generator_of(device: torch.device | None) -> Any | None:
    """The module with the random state of an accelerator (`torch.cuda`, `torch.mps`); None for the CPU."""
    if device is None or device.type == "cpu":
        return None
    module = getattr(torch, device.type, None)
    if device.type == "mps":
        return _Mps
    return module if hasattr(module, "get_rng_state") else None


class _Mps:
    """The MPS device with the interface of `torch.cuda`."""

    @staticmethod
    def get_rng_state(device: torch.device) -> Tensor:
        return torch.mps.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: torch.device) -> None:
        torch.mps.set_rng_state(state)
