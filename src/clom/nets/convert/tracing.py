"""The operations of a plain network in order, by torch.fx.

Tested by tests/nets/convert/test_convert.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp


class Refusal(Exception):
    """Why a network cannot be converted."""


def trace(module: nn.Module, image_shape: Sequence[int]) -> fx.GraphModule:
    """A copy of the module, with the shape of each result for a batch of two images."""
    plain, images = copy.deepcopy(module).eval(), torch.zeros(2, *image_shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with _refusing(f"it does not work on images of shape {tuple(image_shape)}"):
            plain(images.clone())
        with _refusing("torch.fx cannot list its operations"):
            traced = fx.GraphModule(plain, fx.Tracer().trace(plain))
            ShapeProp(traced).propagate(images)
    return traced


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # it can be any code
        reason = " ".join(str(problem).split())[:200].rstrip(".")
        raise Refusal(f"{what} ({type(problem).__name__}: {reason})") from problem


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Empty for what is not a tensor."""
    return tuple(getattr(node.meta.get("tensor_meta"), "shape", ()))
