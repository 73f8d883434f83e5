"""Compaction: a task's sub-network as a small dense network of its open units, equal to the masked one up to rounding.

Derived from the gate graph: each layer is reduced to the open units of its two gate groups, its batch norm is folded
into its weights, and an identity shortcut becomes a selection of channels. Gates must be 0 or 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from clom.nets.gates import Gates, per_channel
from clom.nets.layers import GatedConv2d, GatedJoin, GatedLayer, GatedLinear, GatedResidual, Net

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@torch.no_grad()
def compact(net: Net, task: int, gates: Gates) -> Net:
    """A network of the same class: called with `(images, 0, {})` it returns `net(images, task, gates)[:, open]`."""
    units = {group: open_units(gate) for group, gate in gates.items()}

    def compacted(module: nn.Module) -> nn.Module | None:
        if isinstance(module, GatedConv2d):
            return _compact_conv(module, task, gates[module.gate_out], units)
        if isinstance(module, GatedLinear):
            return _compact_linear(module, gates[module.gate_out], units)
        if isinstance(module, GatedResidual):
            return _compact_residual(module, task, units)
        return Selection(module, gates[module.gate_out], units) if isinstance(module, GatedJoin) else None

    small = copy_with(net, compacted)
    small.n_features = len(open_features(net, gates))
    return small.eval()


def open_units(gate: Tensor) -> Tensor:
    """Indices of the open units. A fully closed group keeps one unit, whose weights become zero."""
    index = gate.nonzero().flatten()
    return index if len(index) else index.new_zeros(1)


def open_features(net: Net, gates: Gates) -> Tensor:
    """Indices of the features that the compact network computes: all of them if features have no gates."""
    if net.feature_group is None:
        return torch.arange(net.n_features, device=next(iter(gates.values())).device)
    return open_units(gates[net.feature_group])


def sub_network(net: Net, task: int, gates: Gates) -> dict[str, Tensor]:
    """All values that `net(images, task, gates)` depends on: weights between open units, the task's batch norm and
    scales, and everything without gates."""
    units = {group: gate.nonzero().flatten() for group, gate in gates.items()}
    numbers = {f"gate {group}": gate for group, gate in gates.items()}
    gated = {name: layer for name, layer in net.named_modules() if isinstance(layer, GatedLayer)}
    for name, layer in gated.items():
        weight, bias = layer.weight, layer.bias
        if layer.gate_out is not None:
            weight, bias = weight[units[layer.gate_out]], None if bias is None else bias[units[layer.gate_out]]
        if layer.gate_in is not None:
            weight = weight[:, spread_units(units[layer.gate_in], layer.spread)]
        numbers |= {f"{name}.weight": weight} | ({} if bias is None else {f"{name}.bias": bias})
        for norm in layer.norms_of(task):
            numbers |= {f"{name}.norm.{part}": value for part, value in norm.state_dict().items()}
        if isinstance(layer, GatedResidual):
            numbers[f"{name}.scale"] = layer.scales[task]
    inside = tuple(f"{name}." for name in gated)
    return numbers | {name: value for name, value in net.state_dict().items() if not name.startswith(inside)}


def copy_with(module: AnyModule, replacement: Callable[[nn.Module], nn.Module | None]) -> AnyModule:
    """A copy of `module` in which some modules are replaced. Those without a replacement (None) are copied too, but
    share their parameters and buffers."""
    clone = copy.copy(module)
    clone._modules = {}
    for name, child in module._modules.items():
        new = None if child is None else replacement(child)
        clone._modules[name] = new if child is None or new is not None else copy_with(child, replacement)
    return clone


def _compact_conv(layer: GatedConv2d, task: int, gate: Tensor, units: dict[str, Tensor]) -> GatedConv2d:
    weight = layer.weight
    bias = torch.zeros_like(gate) if layer.bias is None else layer.bias
    for norm in layer.norms_of(task):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        bias = (bias - norm.running_mean) * scale + (0 if norm.bias is None else norm.bias)
        weight = weight * per_channel(scale, weight.ndim, 0)
    kept = units[layer.gate_out]
    weight = (weight * per_channel(gate, weight.ndim, 0))[kept]
    if layer.gate_in is not None:
        weight = weight[:, units[layer.gate_in]]
    kernel, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding[0]
    assert isinstance(padding, int)
    small = GatedConv2d(
        weight.shape[1],
        len(kept),
        kernel,
        gate_in=layer.gate_in,
        gate_out=layer.gate_out,
        stride=stride,
        padding=padding,
    )
    small.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
    small.bias = nn.Parameter((bias * gate)[kept], requires_grad=False)
    return small


def _compact_linear(layer: GatedLinear, gate: Tensor, units: dict[str, Tensor]) -> GatedLinear:
    kept = units[layer.gate_out]
    weight = (layer.weight * gate[:, None])[kept]
    if layer.gate_in is not None:
        weight = weight[:, spread_units(units[layer.gate_in], layer.spread)]
    small = GatedLinear(weight.shape[1], len(kept), gate_in=layer.gate_in, gate_out=layer.gate_out, spread=layer.spread)
    small.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    bias = torch.zeros_like(gate) if layer.bias is None else layer.bias
    small.bias = nn.Parameter((bias * gate)[kept], requires_grad=False)
    return small


def _compact_residual(layer: GatedResidual, task: int, units: dict[str, Tensor]) -> GatedResidual:
    weight = (layer.weight * layer.scales[task][:, None])[:, units[layer.gate_in]]
    small = GatedResidual(weight.shape[1], layer.out_features, gate_in=layer.gate_in)
    small.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    small.scales = nn.ParameterList([nn.Parameter(layer.weight.new_ones(layer.out_features), requires_grad=False)])
    return small


def spread_units(units: Tensor, spread: int) -> Tensor:
    """The inputs of these units, if each unit corresponds to `spread` neighbouring inputs."""
    return (units[:, None] * spread + torch.arange(spread, device=units.device)).flatten()


class Selection(nn.Module):
    """An identity shortcut between two compacted groups; target units that are closed in the source become zero.

    Implemented as a 1x1 convolution with a 0/1 matrix: exact, and in channels_last more than twice as fast as indexing
    channels.
    """

    matrix: Tensor

    def __init__(self, join: GatedJoin, gate: Tensor, units: dict[str, Tensor]) -> None:
        super().__init__()
        source, target = units[join.gate_in], units[join.gate_out]
        same = (target[:, None] == source[None, :]) & (gate[target] > 0)[:, None]
        matrix = same.to(gate.dtype)[:, :, None, None].contiguous(memory_format=torch.channels_last)
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, values: Tensor, task: int, gates: Gates) -> Tensor:
        if values.ndim == 2:
            return nn.functional.linear(values, self.matrix[:, :, 0, 0])
        return nn.functional.conv2d(values, self.matrix)
