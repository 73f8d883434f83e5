"""A converted network: its layers, and the steps that use them.

Tested by tests/nets/convert/test_convert.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from clom.nets.data_parallel import dropout
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, Net


@dataclass(frozen=True)
class Ref:
    """The result of an earlier step."""

    name: str


@dataclass(frozen=True)
class Step:
    """One operation: a layer, a function or a constant, its inputs, and the name of its result."""

    result: str
    inputs: tuple[Any, ...]
    layer: str = ""
    takes: Literal["", "gates", "task and gates"] = ""
    """Additional arguments of the layer."""
    function: Callable[..., Tensor] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    buffer: str = ""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class ConvertedConv2d(GatedConv2d):
    """A convolution whose per-task batch norms start as copies of the plain network's."""

    def __init__(self, plain: nn.Conv2d, norm: nn.BatchNorm2d | None, *, gate_in: str | None, gate_out: str) -> None:
        padding = plain.padding[0]
        assert isinstance(padding, int)
        super().__init__(
            plain.in_channels,
            plain.out_channels,
            plain.kernel_size[0],
            gate_in=gate_in,
            gate_out=gate_out,
            stride=plain.stride[0],
            padding=padding,
            bias=plain.bias is not None,
            norm=norm is not None,
            affine=norm is not None and norm.affine,
        )
        self.load_state_dict(plain.state_dict())
        self._first_norm = (norm,)  # in a tuple, so that it is not in the state dict

    def add_task(self) -> None:
        (norm,) = self._first_norm
        if norm is None:
            return
        own = _widened(norm, self.out_channels).to(self.weight.device)
        if not self.affine:
            own.affine, own.weight, own.bias = False, None, None  # type: ignore[assignment]
        self.norms.append(own)


def _widened(norm: nn.BatchNorm2d, n_units: int) -> nn.BatchNorm2d:
    """A copy; units that the plain network does not have start like those of a new batch norm."""
    if n_units == norm.num_features:
        return copy.deepcopy(norm)
    wide = nn.BatchNorm2d(n_units, norm.eps, norm.momentum, norm.affine)
    known = wide.state_dict()  # shares the tensors
    for name, values in norm.state_dict().items():
        (known[name][: norm.num_features] if values.ndim else known[name]).copy_(values)
    return wide


class Dropout(nn.Module):
    """Like `nn.Dropout`, also for a batch that is split over ranks."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        return dropout(values, self.p, self.training)


class ChannelDropout(Dropout):
    """Like `nn.Dropout2d`."""

    def forward(self, values: Tensor) -> Tensor:
        return values * super().forward(torch.ones_like(values[:, :, :1, :1])) if self.training else values


class ConvertedNet(Net):
    """Runs the steps in order; a result is freed after its last use."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        buffers: Mapping[str, Tensor],
        steps: Sequence[Step],
        images: Ref,
        output: Ref,
        n_features: int,
        feature_group: str,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        for name, value in buffers.items():
            self.register_buffer(f"constant_{name}", value)
        self.n_features, self.feature_group = n_features, feature_group
        self._steps, self._images, self._output = tuple(steps), images.name, output.name
        last_use = {
            ref.name: number for number, step in enumerate(steps) for ref in step.inputs if isinstance(ref, Ref)
        }
        self._done_after = [
            [name for name, number in last_use.items() if number == place and name != self._output]
            for place in range(len(steps))
        ]

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values = {self._images: images}
        for step, done in zip(self._steps, self._done_after, strict=True):
            inputs = [values[each.name] if isinstance(each, Ref) else each for each in step.inputs]
            values[step.result] = self._run(step, inputs, task, gates)
            for name in done:
                del values[name]
        return values[self._output]

    def _run(self, step: Step, inputs: list[Any], task: int, gates: Gates) -> Tensor:
        if step.buffer:
            return self.get_buffer(f"constant_{step.buffer}")
        if step.function is not None:
            return step.function(*inputs, **step.options)
        more = {"": (), "gates": (gates,), "task and gates": (task, gates)}[step.takes]
        result: Tensor = self.layers[step.layer](*inputs, *more)
        return result
