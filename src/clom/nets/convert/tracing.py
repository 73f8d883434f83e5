"""Tracing a plain network with torch.fx.

Tested by tests/nets/convert/test_convert.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp


class Unsupported(Exception):
    """The reason why a network cannot be converted."""


def trace(module: nn.Module, image_shape: Sequence[int]) -> fx.GraphModule:
    """A traced copy of the module, with the shape of each result for a batch of two images."""
    plain, images = copy.deepcopy(module).eval(), torch.zeros(2, *image_shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with _raising_unsupported(f"it does not work on images of shape {tuple(image_shape)}"):
            plain(images.clone())
        with _raising_unsupported("torch.fx cannot trace it"):
            traced = fx.GraphModule(plain, fx.Tracer().trace(plain))
            ShapeProp(traced).propagate(images)
    return traced


@contextmanager
def _raising_unsupported(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # arbitrary user code
        reason = " ".join(str(problem).split())[:200].rstrip(".")
        raise Unsupported(f"{what} ({type(problem).__name__}: {reason})") from problem


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's tensor; empty for other values."""
    return tuple(getattr(node.meta.get("tensor_meta"), "shape", ()))
