"""Gated layers, which name the gate groups of their inputs and outputs, so that everything about masks is derived.

A gate is a non-negative number per unit, so it commutes with ReLU, pooling and dropout: `a relu(W x + b)` is
`relu((a W) x + a b)` (Eq. 13). Layers therefore multiply gates into their weights, or into the scale and shift of their
batch norm, which are thousands of times smaller than the activations. The output of a closed unit is still exactly
zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets.data_parallel import batch_norm
from clom.nets.gates import Gates, per_channel
from clom.nets.passes import CountedNetwork


class GatedConv2d(nn.Conv2d):
    """A convolution between two gate groups, followed by a per-task batch norm if `norm` is set."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: int,
        *,
        gate_in: str | None,
        gate_out: str,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        norm: bool = False,
        affine: bool = True,
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride=stride, padding=padding, bias=bias)
        self.gate_in, self.gate_out, self.spread = gate_in, gate_out, 1
        self.normalised, self.affine = norm, affine
        self.norms = nn.ModuleList()
        # oneDNN up to 3.12 writes past its workspace in the backward pass of a strided 1x1 convolution of fewer than
        # 8 (AVX2) or 16 (AVX-512) channels in channels_last: https://github.com/uxlfoundation/oneDNN/issues/6035
        self._is_strided_pointwise = kernel == 1 and stride > 1
        self._covers_2x2 = (kernel, stride, padding) == (3, 1, 1)

    @property
    def n_units(self) -> int:
        return self.out_channels

    def add_task(self) -> None:
        if self.normalised:
            norm = nn.BatchNorm2d(self.out_channels, affine=self.affine)
            self.norms.append(norm.to(self.weight.device))

    def norms_of(self, task: int) -> list[nn.BatchNorm2d]:
        """The task's batch norm: one layer, or none."""
        norm = self.norms[task] if self.normalised else None
        return [norm] if isinstance(norm, nn.BatchNorm2d) else []

    def _conv_forward(self, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_strided_pointwise and self.in_channels < 16:  # the same, with the strided pixels selected first
            down, across = self.stride
            return F.conv2d(values[:, :, ::down, ::across], weight, bias)
        trained = weight.requires_grad and torch.is_grad_enabled()
        if self._covers_2x2 and trained and values.shape[2:] == (2, 2) and values.device.type == "cpu":
            return _conv_2x2_pixels(values, weight, bias)
        result: Tensor = super()._conv_forward(values, weight, bias)
        return result

    def forward(  # type: ignore[override]
        self, values: Tensor, task: int, gates: Gates, *, added: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        """`a * norm(conv(x))`, with the gate multiplied into the smallest tensors (see the module's docstring); then
        plus `added`, and through a ReLU if `relu` is set, which inference fuses with the convolution."""
        gate = gates.get(self.gate_out)
        if self.normalised:
            (norm,) = self.norms_of(task)
            outputs = gated_norm(norm, self._conv_forward(values, self.weight, self.bias), gate)
        else:
            weight, bias = self.weight, self.bias
            if gate is not None:
                weight = weight * per_channel(gate, weight.ndim, 0)
                bias = bias * gate if bias is not None else None
            outputs = self._conv_forward(values, weight, bias)
        # In place, since nothing else needs the values: half of the time outside convolutions is memory traffic.
        if added is not None:
            outputs += added
        return F.relu_(outputs) if relu else outputs


def _conv_2x2_pixels(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A padded 3x3 convolution of 2x2 pixels as a dense matrix product: every pixel reads every pixel, and five ninths
    of a convolution's products would be padding. Forward and backward take a third of the time."""
    (n_images, n_in), n_out = values.shape[:2], len(weight)
    pixels = [(row, column) for row in (0, 1) for column in (0, 1)]
    # Pixel `to` reads pixel `of` through the kernel entry at their offset from its centre.
    entries = [3 * (of[0] - to[0] + 1) + of[1] - to[1] + 1 for to in pixels for of in pixels]
    by_entry = weight.permute(2, 3, 0, 1).flatten(0, 1)
    # index_select, since the gradient of plain indexing is summed in an order that depends on the threads.
    pairs = by_entry.index_select(0, torch.tensor(entries).to(weight.device)).view(4, 4, n_out, n_in)
    dense = pairs.transpose(1, 2).reshape(4 * n_out, 4 * n_in)
    shifts = None if bias is None else bias.repeat(4)
    outputs = F.linear(values.permute(0, 2, 3, 1).reshape(n_images, -1), dense, shifts)
    return outputs.view(n_images, 2, 2, n_out).permute(0, 3, 1, 2)


def gated_norm(norm: nn.BatchNorm2d, values: Tensor, gate: Tensor | None) -> Tensor:
    """`gate * norm(values)`, with the gate multiplied into scale and shift."""
    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:  # cumulative average over batches
        momentum = 1.0 / float(norm.num_batches_tracked or 1)
    scale: Tensor | None = norm.weight
    shift: Tensor | None = norm.bias
    if gate is not None:
        scale = gate if scale is None else scale * gate
        shift = None if shift is None else shift * gate
    return batch_norm(values, norm.running_mean, norm.running_var, scale, shift, norm.training, momentum, norm.eps)


class GatedLinear(nn.Linear):
    """A linear layer between two gate groups; each input gate covers `spread` neighbouring inputs (of a flattened
    map)."""

    def __init__(
        self, n_in: int, n_out: int, *, gate_in: str | None, gate_out: str, spread: int = 1, bias: bool = True
    ) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.gate_in, self.gate_out, self.spread = gate_in, gate_out, spread

    @property
    def n_units(self) -> int:
        return self.out_features

    def forward(self, values: Tensor, gates: Gates) -> Tensor:  # type: ignore[override]
        gate = gates.get(self.gate_out)
        if gate is None:
            return F.linear(values, self.weight, self.bias)
        bias = self.bias * gate if self.bias is not None else None
        return F.linear(values, self.weight * gate[:, None], bias)

    def norms_of(self, task: int) -> list[nn.BatchNorm2d]:
        return []


class GatedResidual(nn.Linear):
    """Adds to values without gates: `stream + scale_k * (W x)`, with a scale per task.

    Scales start at zero, so an untrained task leaves the stream unchanged, whatever W is. W is protected without output
    gates: an old task has closed all inputs but its own, and the weights of those are fixed.
    """

    gate_out: str | None = None
    spread = 1

    def __init__(self, n_in: int, n_out: int, *, gate_in: str) -> None:
        super().__init__(n_in, n_out, bias=False)  # a bias would be shared by all tasks
        self.gate_in = gate_in
        self.scales = nn.ParameterList()

    def add_task(self) -> None:
        self.scales.append(nn.Parameter(torch.zeros(self.out_features, device=self.weight.device)))

    def norms_of(self, task: int) -> list[nn.BatchNorm2d]:
        return []

    def forward(self, values: Tensor, stream: Tensor, task: int) -> Tensor:  # type: ignore[override]
        added: Tensor = F.linear(values, self.weight) * self.scales[task]
        return stream + added


GatedLayer = GatedConv2d | GatedLinear | GatedResidual


def max_pool(values: Tensor, size: int) -> Tensor:
    """`F.max_pool2d(values, size)`, which on a CPU always computes indices for a backward pass; where no gradient is
    needed, maxima of shifted views take half of the time."""
    needs_gradient = values.requires_grad and torch.is_grad_enabled()
    if size != 2 or needs_gradient or values.device.type != "cpu" or torch.compiler.is_compiling():
        return F.max_pool2d(values, size)
    height, width = (side // 2 * 2 for side in values.shape[2:])
    rows = torch.maximum(values[:, :, :height:2, :width], values[:, :, 1:height:2, :width])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


class GatedJoin(nn.Module):
    """An identity shortcut: each unit of one group is added to the unit of the same index in another."""

    def __init__(self, *, gate_in: str, gate_out: str) -> None:
        super().__init__()
        self.gate_in, self.gate_out = gate_in, gate_out

    def forward(self, values: Tensor, task: int, gates: Gates) -> Tensor:
        gate = gates.get(self.gate_out)
        if gate is None:
            return values
        # A float32 gate would promote the values, and everything added to them, from a lower precision.
        return values * per_channel(gate.to(values.dtype), values.ndim, 1)


class Net(CountedNetwork, ABC):
    """A feature extractor `h(x, k)`: shared weights, gates as an argument, any number of tasks."""

    n_features: int
    feature_group: str | None
    """The gate group of the features, or None if they have no gates and every task uses all of them."""
    has_frozen_backbone: bool = False
    """Whether the network starts with a frozen backbone, computed by `frozen_features`."""

    @abstractmethod
    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        """Features `[n, n_features]` of images in [0, 1]."""

    def frozen_features(self, images: Tensor) -> Tensor:
        """The features of the frozen backbone, shared by all tasks, which `forward` accepts in place of images; the
        images themselves if there is no frozen backbone."""
        return images

    def add_task(self) -> None:
        for layer in self.gated_layers():
            if isinstance(layer, GatedConv2d | GatedResidual):
                layer.add_task()

    def forget_task(self, task: int) -> None:
        """Remove the parameters of this task; the numbers of later tasks decrease by one."""
        for layer in self.gated_layers():
            if isinstance(layer, GatedConv2d) and layer.normalised:
                del layer.norms[task]
            elif isinstance(layer, GatedResidual):
                layer.scales = nn.ParameterList(scale for number, scale in enumerate(layer.scales) if number != task)

    def drop_biases(self) -> None:
        """Remove biases and the affine parameters of batch norm, so that only weights are left. Call it before the
        first task."""
        for layer in self.gated_layers():
            layer.bias = None
            if isinstance(layer, GatedConv2d):
                layer.affine = False

    def gated_layers(self) -> Iterator[GatedLayer]:
        for module in self.modules():
            if isinstance(module, GatedConv2d | GatedLinear | GatedResidual):
                yield module

    def gate_sizes(self) -> dict[str, int]:
        """The number of units of every gate group, in forward order."""
        layers = [layer for layer in self.gated_layers() if not isinstance(layer, GatedResidual)]
        return {layer.gate_out: layer.n_units for layer in layers}

    def shared_parameters(self) -> list[nn.Parameter]:
        return [p for layer in self.gated_layers() for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter)]

    def task_parameters(self, task: int) -> list[nn.Parameter]:
        """The parameters of this task: its batch norms and the scales of its residuals."""
        layers = list(self.gated_layers())
        scales = [layer.scales[task] for layer in layers if isinstance(layer, GatedResidual)]
        return [p for layer in layers for norm in layer.norms_of(task) for p in norm.parameters()] + scales
