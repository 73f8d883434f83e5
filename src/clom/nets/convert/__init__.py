"""Conversion of plain networks into gated ones: convolutions and linear layers get gates, batch norm becomes per-task.

Old tasks are protected in a gated network for two reasons: the output of a closed unit is exactly zero, and every
trained parameter belongs to a gated layer or to one task. So an operation is supported if it maps zero to zero unit by
unit and has no parameters; anything else raises an error that names it. Units that are added must share their gates:
two layers that end in the same sum share a gate group, and other inputs, such as an identity shortcut, are gated once
more (`GatedJoin`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import fx, nn

from clom.errors import UserError
from clom.nets.convert.converter import Converter
from clom.nets.convert.tracing import Unsupported, trace
from clom.nets.layers import Net

__all__ = ["to_gated"]


def to_gated(module: nn.Module, example_image_shape: Sequence[int]) -> Net:
    """A gated copy of `module`, which computes the same function if all gates are open.

    Supports sequential and residual networks of `Conv2d`, `Linear`, `BatchNorm2d` after a convolution, activations that
    map 0 to 0, pooling, dropout, sums, and reshaping to `[images, features]`. `example_image_shape` is the shape of one
    image, for example `(3, 32, 32)`. Raises a `UserError` that names anything that cannot be protected.
    """
    try:
        traced = trace(module, example_image_shape)
        converter = Converter(traced)
        for node in traced.graph.nodes:
            converter.convert(node)
        net = converter.finish()
        _check_equal(traced, net, example_image_shape)
        return net
    except Unsupported as reason:
        raise UserError(
            f"{type(module).__name__} cannot be converted to a gated network: {reason}. Use a method without masks, or "
            "write the network with the layers of clom.nets.layers."
        ) from reason


@torch.no_grad()
def _check_equal(traced: fx.GraphModule, net: Net, image_shape: Sequence[int]) -> None:
    """Raise if the outputs differ: tracing cannot show everything, above all in-place changes of values read again."""
    twin = copy.deepcopy(net).eval()
    twin.add_task()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.rand(4, *image_shape)
        wanted, found = traced(images.clone()), twin.eval()(images, 0, {})
    tolerance = 1e-4 * max(1.0, float(wanted.abs().max()))
    if not torch.allclose(wanted, found, rtol=0, atol=tolerance):
        raise Unsupported("its forward modifies values in place, or draws random numbers, so that the copy differs")
