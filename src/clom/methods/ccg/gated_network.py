"""Networks whose channels are gated for each image by small gate networks, one per layer and task.

Tested by tests/methods/ccg/test_method.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets.passes import CountedNetwork
from clom.nets.plain import LinearHead
from clom.settings import Positive, Settings

_TEMPERATURE = 2 / 3
_HIDDEN = 16
_OPEN_AT_FIRST = 2.2
"""Initially a gate is open with probability 0.9: if all gates of a layer closed at once, the signal would vanish."""


def binary_concrete(logits: Tensor, noise: Tensor | None = None) -> Tensor:
    """Eq. 2: `1[a + u > 0]` in the forward pass, the gradient of `sigmoid((a + u) / tau)` in the backward pass."""
    noisy = logits if noise is None else logits + noise
    soft = torch.sigmoid(noisy / _TEMPERATURE)
    return (noisy > 0).to(soft.dtype) + (soft - soft.detach())


def logistic_noise(like: Tensor) -> Tensor:
    """`log U - log(1 - U)`: with this noise, a gate is open with probability sigmoid(a)."""
    uniform = torch.rand_like(like).clamp(1e-6, 1 - 1e-6)
    return uniform.log() - (-uniform).log1p()


class TaskGate(nn.Module):
    """Eq. 1: the channels that a task uses for an image, computed from the pooled input of the layer."""

    relevant: Tensor

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, _HIDDEN)
        self.norm = nn.BatchNorm1d(_HIDDEN)
        self.second = nn.Linear(_HIDDEN, n_out)
        nn.init.constant_(self.second.bias, _OPEN_AT_FIRST)
        # Channels that were open on the task's own data; no others may open later, so that its scores never change.
        self.register_buffer("relevant", torch.ones(n_out))

    def forward(self, values: Tensor) -> Tensor:
        logits = self.second(F.relu(self.norm(self.first(values.mean((2, 3))))))
        if self.training:
            return binary_concrete(logits, logistic_noise(logits))
        gate: Tensor = (logits > 0).to(logits.dtype) * self.relevant
        return gate


class Layer(nn.Module):
    """A group of channels: the convolutions that compute it, and the normalisation and gate of each task."""

    def __init__(self, n_gate: int, n_out: int, convs: dict[str, nn.Conv2d]) -> None:
        super().__init__()
        self.n_gate, self.n_out = n_gate, n_out
        self.convs = nn.ModuleDict(convs)
        self.norms = nn.ModuleList()  # per task, one for each convolution
        self.gates = nn.ModuleList()

    def add_task(self) -> None:
        self.norms.append(nn.ModuleDict({name: nn.BatchNorm2d(self.n_out) for name in self.convs}))
        self.gates.append(TaskGate(self.n_gate, self.n_out))

    def kernels(self) -> list[nn.Parameter]:
        """The weights of these channels, with the output channel as the first dimension."""
        return [parameter for conv in self.convs.values() for parameter in conv.parameters()]

    def conv(self, name: str, values: Tensor, task: int) -> Tensor:
        norms = self.norms[task]
        assert isinstance(norms, nn.ModuleDict)
        normalised: Tensor = norms[name](self.convs[name](values))
        return normalised

    def gate(self, task: int) -> TaskGate:
        gate = self.gates[task]
        assert isinstance(gate, TaskGate)
        return gate

    def frozen_channels(self, n_tasks: int) -> Tensor:
        """The channels that are relevant for any of the first `n_tasks` tasks."""
        frozen = self.kernels()[0].new_zeros(self.n_out)
        for task in range(n_tasks):
            frozen = torch.maximum(frozen, self.gate(task).relevant)
        return frozen


class ConditionalNet(CountedNetwork, ABC):
    """The features of each task, and the gates they were computed with."""

    n_features: int

    @abstractmethod
    def forward(self, images: Tensor, task: int) -> tuple[Tensor, list[Tensor]]:
        """Features `[n, n_features]` and the gates of every layer, `[n, channels]` of zeros and ones."""

    def layers(self) -> Iterator[Layer]:
        return (module for module in self.modules() if isinstance(module, Layer))

    def add_task(self) -> None:
        for layer in self.layers():
            layer.add_task()

    def train_only(self, task: int) -> None:
        """Training mode for one task; the others stay in evaluation mode, without noise or updates of statistics."""
        self.eval()
        for layer in self.layers():
            layer.norms[task].train()
            layer.gates[task].train()

    def norm_parameters(self, task: int) -> list[nn.Parameter]:
        return [parameter for layer in self.layers() for parameter in layer.norms[task].parameters()]

    def gate_parameters(self, task: int) -> list[nn.Parameter]:
        return [parameter for layer in self.layers() for parameter in layer.gates[task].parameters()]


class ConvSettings(Settings):
    """Three 3x3 convolutions with 100 filters, with pooling after the first two (MNIST and SVHN in the paper)."""

    kind: Literal["conv"] = "conv"
    channels: tuple[Positive, ...] = (100, 100, 100)


class ConditionalConv(ConditionalNet):
    """conv - norm - ReLU - gate, with 2x2 max-pooling after all but the last; global average pooling."""

    def __init__(self, settings: ConvSettings) -> None:
        super().__init__()
        widths = [3, *settings.channels]
        self.stack = nn.ModuleList(
            Layer(n_in, n_out, {"main": nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)})
            for n_in, n_out in pairwise(widths)
        )
        self.n_features = widths[-1]

    def forward(self, images: Tensor, task: int) -> tuple[Tensor, list[Tensor]]:
        values, gates = images, list[Tensor]()
        for number, layer in enumerate(self.layers()):
            gates.append(layer.gate(task)(values))
            values = F.relu(layer.conv("main", values, task)) * gates[-1][:, :, None, None]
            if number < len(self.stack) - 1:
                values = F.max_pool2d(values, 2)
        return values.mean((2, 3)), gates


class ConditionalResNetSettings(Settings):
    kind: Literal["resnet18"] = "resnet18"
    width: Positive = 64
    stem_stride: Literal[1, 2] = 1


class _Block(nn.Module):
    """Both gates read the block's input. The second acts after the sum: otherwise the shortcut would bypass it."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.inner = Layer(n_in, n_out, {"main": nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)})
        convs = {"main": nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)}
        if stride > 1 or n_in != n_out:
            convs["shortcut"] = nn.Conv2d(n_in, n_out, 1, bias=False)  # `forward` applies the stride before it
        self.outer = Layer(n_in, n_out, convs)
        self.stride = stride

    def forward(self, values: Tensor, task: int) -> tuple[Tensor, list[Tensor]]:
        first, second = self.inner.gate(task)(values), self.outer.gate(task)(values)
        inner = F.relu(self.inner.conv("main", values, task)) * first[:, :, None, None]
        shortcut = values[:, :, :: self.stride, :: self.stride]
        if "shortcut" in self.outer.convs:
            shortcut = self.outer.conv("shortcut", shortcut, task)
        outer = F.relu(self.outer.conv("main", inner, task) + shortcut)
        return outer * second[:, :, None, None], [first, second]


class ConditionalResNet(ConditionalNet):
    """ResNet-18 for small images with a gate after the stem and two in every block."""

    def __init__(self, settings: ConditionalResNetSettings) -> None:
        super().__init__()
        width = settings.width
        self.stem = Layer(3, width, {"main": nn.Conv2d(3, width, 3, settings.stem_stride, padding=1, bias=False)})
        self.blocks = nn.ModuleList()
        n_in = width
        for stage in range(4):
            for position in range(2):
                n_out = width * 2**stage
                self.blocks.append(_Block(n_in, n_out, 2 if stage and not position else 1))
                n_in = n_out
        self.n_features = n_in

    def forward(self, images: Tensor, task: int) -> tuple[Tensor, list[Tensor]]:
        images = (images - 0.5) / 0.5
        gates = [self.stem.gate(task)(images)]
        values = F.relu(self.stem.conv("main", images, task)) * gates[0][:, :, None, None]
        for block in self.blocks:
            values, more = block(values, task)
            gates += more
        return values.mean((2, 3)), gates


def make_conditional_net(settings: ConvSettings | ConditionalResNetSettings) -> ConditionalNet:
    return ConditionalConv(settings) if isinstance(settings, ConvSettings) else ConditionalResNet(settings)


class TaskClassifier(nn.Module):
    """Eq. 6: from the features of all tasks to task logits. Growing does not change the logits of older tasks."""

    def __init__(self, n_features: int, hidden: int = 64) -> None:
        super().__init__()
        self.n_features, self.hidden = n_features, hidden
        self.columns = nn.ModuleList()
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.rows = LinearHead(hidden)

    def grow(self) -> None:
        column = nn.Linear(self.n_features, self.hidden, bias=False)
        if len(self.columns):
            nn.init.zeros_(column.weight)
        self.columns.append(column)
        self.rows.grow(1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        terms = [column(of_task) for column, of_task in zip(self.columns, features, strict=True)]
        logits: Tensor = self.rows(F.relu(torch.stack(terms).sum(0) + self.bias))
        return logits
