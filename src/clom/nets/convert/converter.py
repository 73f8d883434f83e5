"""Converting a traced network into a gated one, operation by operation.

Tested by tests/nets/convert/test_convert.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from clom.nets.convert.network import ChannelDropout, ConvertedConv2d, ConvertedNet, Dropout, Ref, Step
from clom.nets.convert.operations import (
    FUNCTIONS,
    MEANS,
    POINTWISE,
    POOLING,
    REASONS,
    RESHAPINGS,
    SCALINGS,
    SHIFTS,
    SUMS,
)
from clom.nets.convert.tracing import Unsupported, shape_of
from clom.nets.layers import GatedJoin, GatedLinear


@dataclass(frozen=True)
class _Value:
    """A traced tensor and the layer whose gates its units have; images and values derived only from them have none."""

    ref: Ref
    shape: tuple[int, ...]
    layer: int | None = None
    """The layer that owns the gates."""
    spread: int = 1
    """Number of neighbouring entries that belong to one unit, after a map was flattened."""
    fresh: bool = False
    """Whether nothing else reads the units of this layer, so that it can share the gates of another one."""


@dataclass
class _Layer:
    """A convolution or linear layer to be created."""

    name: str
    plain: nn.Conv2d | nn.Linear
    input: _Value
    norm: nn.BatchNorm2d | None = None
    joined: int | None = None
    """The layer with which it shares gates."""


@dataclass
class Converter:
    """Call `convert` with the nodes of a traced network in order, then `finish`."""

    traced: fx.GraphModule
    values: dict[fx.Node, _Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    layers: list[_Layer] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    joins: list[tuple[str, int, int]] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    output: _Value | None = None

    def convert(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if not self.values:
                self.values[node] = _Value(Ref(node.name), shape_of(node))
        elif node.op == "output":
            self.output = self._output(node)
        elif node in self.values or "tensor_meta" not in node.meta:
            pass  # a batch norm merged with its convolution, or a number such as x.size(0)
        elif node.op == "get_attr":
            self._buffer(node)
        elif node.op == "call_module":
            self._module(node, self.traced.get_submodule(str(node.target)))
        else:
            self._operation(node)

    # --- layers --------------------------------------------------------------------------------------------------

    def _module(self, node: fx.Node, module: nn.Module) -> None:
        if type(module) is nn.Conv2d:
            self._conv(node, module)
        elif type(module) is nn.Linear:
            self._linear(node, module)
        elif type(module) is nn.Flatten:
            self._flatten(node)
        elif type(module) is nn.Dropout:
            self._keep(node, Dropout(module.p))
        elif type(module) is nn.Dropout2d:
            self._keep(node, ChannelDropout(module.p))
        elif type(module) in POINTWISE or (type(module) in POOLING and len(shape_of(node)) == 4):
            self._keep(node, module)
        else:
            raise self._unsupported(node, REASONS.get(type(module).__name__, "is not a supported layer"))

    def _conv(self, node: fx.Node, conv: nn.Conv2d) -> None:
        value = self._input(node)
        if conv.groups != 1:
            raise self._unsupported(node, f"has groups={conv.groups}, but gates need groups=1")
        square = all(len(set(pair)) == 1 for pair in (conv.kernel_size, conv.stride, conv.padding))
        if not square or isinstance(conv.padding, str) or conv.padding_mode != "zeros" or set(conv.dilation) != {1}:
            raise self._unsupported(node, "must have a square kernel, equal strides, zero padding and no dilation")
        users = list(node.users)
        norm = self._norm(users[0]) if len(users) == 1 else None
        last = users[0] if norm is not None else node
        self._add_layer(node, last, _Layer(str(node.target), conv, value, norm))

    def _norm(self, node: fx.Node) -> nn.BatchNorm2d | None:
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        if type(module) is not nn.BatchNorm2d:
            return None
        if module.running_mean is None:
            raise self._unsupported(node, "has no running statistics, so that predictions would depend on the batch")
        return module

    def _linear(self, node: fx.Node, linear: nn.Linear) -> None:
        value = self._input(node)
        if len(value.shape) != 2:
            raise self._unsupported(node, f"reads a tensor of {len(value.shape)} dimensions: flatten it first")
        self._add_layer(node, node, _Layer(str(node.target), linear, value))

    def _add_layer(self, node: fx.Node, last: fx.Node, layer: _Layer) -> None:
        if any(known.name == layer.name for known in self.layers):
            raise self._unsupported(node, "is used more than once")
        self.layers.append(layer)
        takes: Literal["gates", "task and gates"] = "task and gates" if type(layer.plain) is nn.Conv2d else "gates"
        self.steps.append(Step(last.name, (layer.input.ref,), layer=_key(layer.name), takes=takes))
        self.values[last] = _Value(Ref(last.name), shape_of(last), len(self.layers) - 1, fresh=True)

    def _keep(self, node: fx.Node, module: nn.Module) -> None:
        """Keep a module without parameters that maps zero to zero."""
        value = self._input(node)
        self.modules[_key(str(node.target))] = module
        self.steps.append(Step(node.name, (value.ref,), layer=_key(str(node.target))))
        self._derive(node, value)

    def _buffer(self, node: fx.Node) -> None:
        """A constant, such as the mean of the images."""
        if str(node.target) not in dict(self.traced.named_buffers()):
            raise self._unsupported(node, "belongs to no gated layer")
        name = _key(str(node.target))
        self.buffers[name] = self.traced.get_buffer(str(node.target))
        self.steps.append(Step(node.name, (), buffer=name))
        self.values[node] = _Value(Ref(node.name), shape_of(node))

    # --- operations ----------------------------------------------------------------------------------------------

    def _operation(self, node: fx.Node) -> None:
        target, tensors = node.target, [value for value in node.all_input_nodes if value in self.values]
        if target in FUNCTIONS and len(tensors) == 1:
            self._call(node, FUNCTIONS[target])
        elif target is F.dropout:
            self._functional_dropout(node)
        elif target in RESHAPINGS:
            self._flatten(node)
        elif target in MEANS:
            self._mean(node)
        elif target in SUMS and len(tensors) == 2 and any(self._has_gates(tensor) for tensor in tensors):
            self._sum(node, *tensors)
        elif target in SCALINGS and (self._is_factor(node, tensors) or not any(map(self._has_gates, tensors))):
            self._call(node, SCALINGS[target])
        elif target in SHIFTS and not any(map(self._has_gates, tensors)):
            self._call(node, SHIFTS[target])
        else:
            name = str(getattr(target, "__name__", target))
            raise self._unsupported(node, REASONS.get(name, "is not an operation that keeps closed units zero"))

    def _is_factor(self, node: fx.Node, tensors: list[fx.Node]) -> bool:
        """Whether a tensor is multiplied or divided by a number."""
        return len(tensors) == 1 and (SCALINGS[node.target] is torch.mul or node.args[0] is tensors[0])

    def _has_gates(self, node: fx.Node) -> bool:
        return self.values[node].layer is not None

    def _call(self, node: fx.Node, function: Callable[..., Tensor]) -> None:
        if any(each not in self.values for each in node.all_input_nodes):
            raise self._unsupported(node, "depends on a size computed at run time")
        inputs = tuple(self.values[each].ref if isinstance(each, fx.Node) else each for each in node.args)
        options = {name: option for name, option in node.kwargs.items() if name != "inplace"}
        self.steps.append(Step(node.name, inputs, function=function, options=options))
        self._derive(node, self._input(node))

    def _functional_dropout(self, node: fx.Node) -> None:
        """`F.dropout(x, p, self.training)`; the training mode is read when the network runs."""
        value = self._input(node)
        p = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        self.modules[_key(node.name)] = Dropout(float(p))  # type: ignore[arg-type]
        self.steps.append(Step(node.name, (value.ref,), layer=_key(node.name)))
        self._derive(node, value)

    def _flatten(self, node: fx.Node) -> None:
        """Any reshaping to `[images, values]` that keeps the values of a unit together."""
        value, shape = self._input(node), shape_of(node)
        if shape == value.shape:
            self._derive(node, value, value.ref)
        elif len(shape) == 2 and shape == (value.shape[0], math.prod(value.shape[1:])):
            self.steps.append(Step(node.name, (value.ref, 1), function=torch.flatten))
            spread = value.spread * math.prod(value.shape[2:])
            self.values[node] = replace(value, ref=Ref(node.name), shape=shape, spread=spread, fresh=False)
        else:
            raise self._unsupported(
                node,
                f"reshapes {value.shape[1:]} into {shape[1:]}: only reshaping to [images, numbers] keeps units apart",
            )

    def _mean(self, node: fx.Node) -> None:
        value = self._input(node)
        given: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        dims: list[int] = [given] if isinstance(given, int) else list(given or ())
        places = [dim % len(value.shape) for dim in dims]
        if not places or min(places) < 2:
            raise self._unsupported(node, "averages over images or units: only a mean over pixels keeps units apart")
        self._call(node, torch.mean)

    def _sum(self, node: fx.Node, left: fx.Node, right: fx.Node) -> None:
        one, two = self.values[left], self.values[right]
        if node.kwargs.get("alpha", 1) != 1:
            raise self._unsupported(node, "adds with alpha != 1")
        if one.layer is None or two.layer is None:
            raise self._unsupported(node, "adds values without gates, so that a closed unit would not be zero")
        if one.shape[1] != two.shape[1] or len(one.shape) != len(two.shape):
            raise self._unsupported(node, f"adds different numbers of units, {one.shape[1]} and {two.shape[1]}")
        groups = self._group(one.layer), self._group(two.layer)
        together = self._is_fresh(left) and self._is_fresh(right)
        if groups[0] != groups[1] and together:
            self.layers[groups[1]].joined = groups[0]
        elif groups[0] != groups[1]:
            if {one.spread, two.spread} != {1} or len(one.shape) not in (2, 4):
                raise self._unsupported(node, "adds flattened maps of different layers: add the maps before flattening")
            one, two = (one, two) if self._is_fresh(left) else (two, one)
            two = self._join(node, two, one)
        self.steps.append(Step(node.name, (one.ref, two.ref), function=torch.add))
        self.values[node] = replace(one, ref=Ref(node.name), shape=shape_of(node), fresh=together)

    def _join(self, node: fx.Node, value: _Value, target: _Value) -> _Value:
        assert value.layer is not None
        assert target.layer is not None
        name = f"{node.name}_join"
        self.joins.append((name, value.layer, target.layer))
        self.steps.append(Step(name, (value.ref,), layer=name, takes="task and gates"))
        return replace(value, ref=Ref(name))

    # --- traced values -------------------------------------------------------------------------------------------

    def _input(self, node: fx.Node) -> _Value:
        known = [self.values[each] for each in node.all_input_nodes if each in self.values]
        if not known:
            raise self._unsupported(node, "reads something that is not computed from the images")
        return max(known, key=lambda value: value.layer is not None)

    def _derive(self, node: fx.Node, value: _Value, ref: Ref | None = None) -> None:
        """Record a result with the same units as `value`."""
        fresh = value.fresh and all(len(each.users) == 1 for each in node.all_input_nodes if each in self.values)
        self.values[node] = replace(value, ref=ref or Ref(node.name), shape=shape_of(node), fresh=fresh)

    def _is_fresh(self, node: fx.Node) -> bool:
        return self.values[node].fresh and len(node.users) == 1

    def _group(self, layer: int) -> int:
        """The layer that names the gate group."""
        joined = self.layers[layer].joined
        return layer if joined is None else self._group(joined)

    def _unsupported(self, node: fx.Node, why: str) -> Unsupported:
        if node.op == "call_module":
            kind = type(self.traced.get_submodule(str(node.target))).__name__
            return Unsupported(f"the layer '{node.target}' ({kind}) {why}")
        what = "parameter" if node.op == "get_attr" else "operation"
        return Unsupported(f"the {what} '{getattr(node.target, '__name__', node.target)}' {why}")

    # --- the result ----------------------------------------------------------------------------------------------

    def _output(self, node: fx.Node) -> _Value:
        result = node.args[0]
        value = self.values.get(result) if isinstance(result, fx.Node) else None
        if value is None or len(value.shape) != 2:
            raise Unsupported("it must return one tensor of features [images, features]")
        if value.layer is None or value.spread != 1:
            raise Unsupported("each feature needs a gate: end with a linear layer, or average the last map over pixels")
        return value

    def finish(self) -> ConvertedNet:
        assert self.output is not None
        assert self.output.layer is not None
        parts = {_key(layer.name): self._gated(number) for number, layer in enumerate(self.layers)}
        for name, source, target in self.joins:
            parts[name] = GatedJoin(gate_in=self._gate(source), gate_out=self._gate(target))
        feature_group = self._gate(self.output.layer)
        images = next(iter(self.values.values())).ref
        n_features = self.output.shape[1]
        return ConvertedNet(
            parts | self.modules, self.buffers, self.steps, images, self.output.ref, n_features, feature_group
        )

    def _gate(self, layer: int) -> str:
        return self.layers[self._group(layer)].name

    def _gated(self, number: int) -> nn.Module:
        layer = self.layers[number]
        gate_in = None if layer.input.layer is None else self._gate(layer.input.layer)
        if isinstance(layer.plain, nn.Conv2d):
            return ConvertedConv2d(layer.plain, layer.norm, gate_in=gate_in, gate_out=self._gate(number))
        linear = layer.plain
        gated = GatedLinear(
            linear.in_features,
            linear.out_features,
            gate_in=gate_in,
            gate_out=self._gate(number),
            spread=layer.input.spread,
            bias=linear.bias is not None,
        )
        gated.load_state_dict(linear.state_dict())
        return gated


def _key(name: str) -> str:
    """A name without dots, which `nn.ModuleDict` does not allow."""
    return name.replace(".", "__")
