"""Torch's global random states, of the CPU and of an accelerator: initial weights and dropout draw from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def get_random_states(device: torch.device | None = None) -> Tensor | list[Tensor]:
    """The CPU's state; for an accelerator with a generator of its own, that state beside it."""
    accelerator = _generator_of(device)
    cpu = torch.get_rng_state()
    return cpu if accelerator is None else [cpu, accelerator.get_rng_state(device).cpu()]


def set_random_states(states: Tensor | list[Tensor], device: torch.device | None = None) -> None:
    """Restore what `get_random_states` gave; a state of another kind of device is left out."""
    cpu, *others = [states] if isinstance(states, Tensor) else states
    torch.set_rng_state(cpu.cpu())
    accelerator = _generator_of(device)
    if accelerator is not None and others:
        accelerator.set_rng_state(others[0].cpu(), device)


@contextmanager
def fork_random_states(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is drawn or seeded inside does not disturb the caller's randomness."""
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
    """The one MPS device, behind the interface of `torch.cuda`."""

    @staticmethod
    def get_rng_state(device: torch.device) -> Tensor:
        return torch.mps.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: torch.device) -> None:
        torch.mps.set_rng_state(state)
