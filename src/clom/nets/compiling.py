"""torch.compile around networks while they are trained: off by default, and never needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from clom.errors import UserError, shorten
from clom.nets.layers import Net
from clom.nets.plain import Backbone

BACKEND = "inductor"
"""The backend of torch.compile that generates code; others are for tests."""


@contextmanager
def compiled_networks(owner: nn.Module, backend: str | None) -> Iterator[None]:
    """Within the context, the networks in `owner` are compiled by `backend`; None changes nothing.

    They are compiled in place, so that names, parameters and copies stay the same.
    """
    networks = list(_networks(owner)) if backend is not None else []
    for network in networks:
        network.compile(backend=backend)
    try:
        yield
    finally:
        for network in networks:
            network._compiled_call_impl = None
        if networks:
            # Graphs are specialised to a task, and torch stops compiling a function after eight of them.
            torch._dynamo.reset()


def _networks(owner: nn.Module) -> Iterator[nn.Module]:
    """Gated networks, and those that people bring."""
    for module in owner.modules():
        if isinstance(module, Backbone):
            yield module.net
        elif isinstance(module, Net):
            yield module


def require_compiler(device: torch.device) -> None:
    """Raise if torch.compile cannot generate code for this device, which needs a C++ compiler or Triton."""
    try:
        torch.compile(torch.sin, backend=BACKEND)(torch.ones(2, device=device))
    except Exception as problem:  # torch raises many kinds
        reason = shorten(str(problem).strip().partition("\n")[0].rstrip("."), 200)
        needed = "a C++ compiler such as g++" if device.type == "cpu" else "Triton and a C++ compiler"
        raise UserError(
            f"--compile does not work here: torch.compile needs {needed} ({reason}). Install it, or omit --compile."
        ) from problem
