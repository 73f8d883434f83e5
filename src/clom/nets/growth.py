"""Growth: gated layers get more units, and a task still sees the network as it was when the task was learned.

Units are appended, so the first units of a group are the old ones. Everything that belongs to an old task (embeddings,
batch norms, scales, head) keeps its size. `narrowed` is the network with the first units alone: the same tensors of the
same shapes as before growth, so its results are bit-identical.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from clom.nets.compact import copy_with
from clom.nets.layers import GatedConv2d, GatedJoin, GatedLayer, GatedLinear, GatedResidual, Net

Sizes = Mapping[str, int]
"""Gate group -> its number of units."""


def evened(net: Net, sizes: Sizes) -> dict[str, int]:
    """The sizes, increased until groups that an identity shortcut adds unit by unit are equally large."""
    even, joins = dict(sizes), [module for module in net.modules() if isinstance(module, GatedJoin)]
    while uneven := [join for join in joins if even[join.gate_in] != even[join.gate_out]]:
        for join in uneven:
            even[join.gate_in] = even[join.gate_out] = max(even[join.gate_in], even[join.gate_out])
    return even


def narrowed(net: Net, sizes: Sizes) -> Net:
    """A copy of the network with the first units of every group; the network itself if these are all."""
    if all(sizes[group] == size for group, size in net.gate_sizes().items()):
        return net

    def narrow(module: nn.Module) -> nn.Module | None:
        if not isinstance(module, GatedLayer):
            return None
        layer = copy.copy(module)
        layer._parameters = dict(module._parameters)
        resize(layer, sizes)
        return layer

    small = copy_with(net, narrow)
    set_n_features(small, sizes)
    return small


def set_n_features(net: Net, sizes: Sizes) -> None:
    if net.feature_group is not None:
        net.n_features = sizes[net.feature_group]


@torch.no_grad()
def resize(layer: GatedLayer, sizes: Sizes, randomness: torch.Generator | None = None) -> None:
    """Give a layer the inputs and outputs of its gate groups: the last ones are cut off, or new ones are appended,
    with weights drawn as torch draws those of a new layer of that size."""
    n_out = len(layer.weight) if layer.gate_out is None else sizes[layer.gate_out]
    n_in = layer.weight.shape[1] if layer.gate_in is None else sizes[layer.gate_in] * layer.spread
    if layer.weight.shape[:2] == (n_out, n_in):
        return
    shape = torch.Size([n_out, n_in, *layer.weight.shape[2:]])
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    layer.weight = _resized(layer.weight, shape, bound, randomness)
    if layer.bias is not None:
        layer.bias = _resized(layer.bias, shape[:1], bound, randomness)
    if isinstance(layer, GatedConv2d):
        layer.in_channels, layer.out_channels = n_in, n_out
    elif isinstance(layer, GatedLinear | GatedResidual):
        layer.in_features, layer.out_features = n_in, n_out


def _resized(old: Tensor, shape: torch.Size, bound: float, randomness: torch.Generator | None) -> nn.Parameter:
    common = tuple(slice(min(before, after)) for before, after in zip(old.shape, shape, strict=True))
    values = old[common]
    if values.shape != shape:
        drawn = torch.empty(shape).uniform_(-bound, bound, generator=randomness)  # on the CPU: the same on any device
        drawn[common] = values.cpu()
        values = drawn.to(old.device)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return nn.Parameter(values.clone(memory_format=layout), requires_grad=old.requires_grad)
