"""Classifiers without weights of their own: HyperNet generates the weights, which are passed in.

They are ordinary modules on the meta device, which define the shapes of the weights. The layers before the head have
the same shape for every task; the head has one row per class of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets.passes import CountedNetwork
from clom.settings import Positive, Settings

# The statistics of ImageNet, with which the official code normalises all colour images.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class MlpTargetSettings(Settings):
    """Two hidden layers of 400 units: 478,410 weights for MNIST with ten outputs."""

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Positive, ...] = (400, 400)


class ResNet32Settings(Settings):
    """The network with 6n + 2 layers of He et al. (2016) for small images: n = 5 is ResNet-32, 464,154 weights with ten
    outputs."""

    kind: Literal["resnet32"] = "resnet32"
    width: Positive = 16
    n: Positive = 5


TargetSettings = MlpTargetSettings | ResNet32Settings


class MlpTarget(CountedNetwork):
    """A multilayer perceptron on greyscale pixels, the mean of the three channels."""

    def __init__(self, settings: MlpTargetSettings, image_size: int, n_outputs: int) -> None:
        super().__init__()
        sizes = (image_size**2, *settings.hidden)
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = images.mean(1).flatten(1)
        for layer in self.layers:
            values = F.relu(layer(values))
        outputs: Tensor = self.head(values)
        return outputs


class _Block(nn.Module):
    """conv-norm-ReLU, conv-norm plus the shortcut, ReLU. The shortcut has no weights (option A of He et al.)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.stride, self.new_channels = stride, n_out - n_in

    def forward(self, values: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(values)))
        # Subsampled, with zeros for the additional channels.
        shortcut = F.pad(values[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(self.norm2(self.conv2(inner)) + shortcut)


class ResNet32(CountedNetwork):
    """One 3x3 convolution, three stages of n blocks with doubling width, global average pooling, head."""

    def __init__(self, settings: ResNet32Settings, n_outputs: int) -> None:
        super().__init__()
        width = settings.width
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList()
        n_in = width
        for stage in range(3):
            for position in range(settings.n):
                n_out, stride = width * 2**stage, 2 if stage > 0 and position == 0 else 1
                self.blocks.append(_Block(n_in, n_out, stride))
                n_in = n_out
        self.head = nn.Linear(n_in, n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        mean, deviation = (torch.tensor(colour).view(3, 1, 1).to(images.device) for colour in (_MEAN, _DEVIATION))
        values = F.relu(self.norm(self.stem((images - mean) / deviation)))
        for block in self.blocks:
            values = block(values)
        outputs: Tensor = self.head(values.mean((2, 3)))
        return outputs


def make_target(settings: TargetSettings, image_size: int, n_outputs: int) -> nn.Module:
    """The network for square images on the meta device: shapes without weights."""
    with torch.device("meta"):
        if isinstance(settings, MlpTargetSettings):
            return MlpTarget(settings, image_size, n_outputs)
        return ResNet32(settings, n_outputs)


def n_weights(target: nn.Module) -> int:
    """The number of weights to generate, including scales and shifts of normalisation layers."""
    return sum(parameter.numel() for parameter in target.parameters())


def as_weights(target: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """Split a vector of `n_weights` into named tensors, in the order of the target's parameters, the head last."""
    names, shapes = zip(*((name, parameter.shape) for name, parameter in target.named_parameters()), strict=True)
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}


class Statistics(nn.Module):
    """One task's running means and variances of the target's normalisation layers; empty if it has none."""

    def __init__(self, target: nn.Module) -> None:
        super().__init__()
        norms = [(name, module) for name, module in target.named_modules() if isinstance(module, nn.BatchNorm2d)]
        self.names: Sequence[str] = [name for name, _ in norms]
        for number, (_, norm) in enumerate(norms):
            self.register_buffer(f"mean{number}", torch.zeros(norm.num_features))
            self.register_buffer(f"variance{number}", torch.ones(norm.num_features))
            self.register_buffer(f"batches{number}", torch.zeros((), dtype=torch.int64))

    def named(self) -> dict[str, Tensor]:
        """The buffers under the target's names; training updates them in place."""
        own_names, target_names = (
            ("mean", "variance", "batches"),
            ("running_mean", "running_var", "num_batches_tracked"),
        )
        return {
            f"{name}.{target_name}": self.get_buffer(f"{own_name}{number}")
            for number, name in enumerate(self.names)
            for own_name, target_name in zip(own_names, target_names, strict=True)
        }
