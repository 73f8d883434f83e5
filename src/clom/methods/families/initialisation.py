"""How the modules of a method start: random seeds and devices.

Tested by tests/methods/families/test_base.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from clom.errors import UserError
from clom.learning.loop import generator
from clom.learning.random_states import fork_random_states
from clom.nets.plain import set_layout


def place(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device, in the memory format in which convolutions are fastest."""
    set_layout(module.to(device=device))


def move(method: nn.Module, device: torch.device) -> None:
    """Move a method to another device, or say why that is impossible."""
    try:
        place(method, device)
    except TypeError as problem:  # MPS has no float64
        raise UserError(
            f"{getattr(method, 'name', 'This')} needs float64, which the device '{device}' does not have. "
            "Use --device cpu."
        ) from problem


@contextmanager
def seeded(seed: int, *path: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators (initial weights, dropout), of the CPU and of `device`, and restore them after."""
    with fork_random_states(device):
        torch.manual_seed(generator(seed, *path).initial_seed())
        yield
