"""A plain network as a gated one: convolutions and linear layers get gates, normalisation becomes each task's own.

Old tasks are safe in a gated network for two reasons: a closed unit is exactly zero wherever it is read, and every
trained number belongs to a layer that names its gates or to one task. So an operation is taken over if it maps zero to
zero unit by unit and has nothing to train, and anything else is refused by name. Units that are added belong together:
two layers that end in the same sum share a gate group, and what comes from elsewhere, as an identity shortcut does, is
gated once more (`GatedJoin`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import fx, nn

from clom.errors import UserError
from clom.nets.convert.converter import Converter
from clom.nets.convert.tracing import Refusal, trace
from clom.nets.layers import Net

__all__ = ["to_gated"]


def to_gated(module: nn.Module, example_image_shape: Sequence[int]) -> Net:
    """The network with gates: with all of them open it computes what `module` does, from a copy of its weights.

    It takes sequential and residual networks of `Conv2d`, `Linear`, `BatchNorm2d` behind a convolution, activations
    that map 0 to 0, pooling, dropout, sums, and reshaping to `[images, features]`. `example_image_shape` is that of one
    image, for example `(3, 32, 32)`. Whatever cannot be protected is refused with a `UserError` that names it.
    """
    try:
        traced = trace(module, example_image_shape)
        converter = Converter(traced)
        for node in traced.graph.nodes:
            converter.convert(node)
        net = converter.finish()
        _check_equal(traced, net, example_image_shape)
        return net
    except Refusal as reason:
        raise UserError(
            f"{type(module).__name__} cannot be given gates: {reason}. Use a method without masks, or write the "
            "network with the layers of clom.nets.layers."
        ) from reason


@torch.no_grad()
def _check_equal(traced: fx.GraphModule, net: Net, image_shape: Sequence[int]) -> None:
    """Code may do what no list of operations shows, above all change values in place that are read again."""
    twin = copy.deepcopy(net).eval()
    twin.add_task()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.rand(4, *image_shape)
        wanted, found = traced(images.clone()), twin.eval()(images, 0, {})
    tolerance = 1e-4 * max(1.0, float(wanted.abs().max()))
    if not torch.allclose(wanted, found, rtol=0, atol=tolerance):
        raise Refusal("its forward changes values in place, or draws random numbers, so that the copy differs")
