"""Lower precision for the network alone: gates, losses, heads, optimiser state and everything stored stay in float32.

Tested by tests/learning/test_precision.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_dtype: ContextVar[torch.dtype | None] = ContextVar("network dtype", default=None)


@contextmanager
def network_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Within the context, training passes through networks are autocast to `dtype`; None means float32."""
    scope = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(scope)


def autocast_network(compute: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """`compute(images)` in the network's dtype, returned in float32. Passes without gradients stay in float32: their
    features are stored, or compared with those of inference."""
    dtype = _dtype.get()
    if dtype is None or not torch.is_grad_enabled():
        return compute(images)
    with torch.autocast(images.device.type, dtype):
        features = compute(images)
    return features.float()
