"""The AlexNet-like network of the paper's MNIST experiment: three convolutions and one fully connected layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.data_parallel import dropout
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, GatedLinear, Net, max_pool
from clom.nets.net_settings import NetSettings
from clom.settings import Count, Fraction, Positive


class AlexNetSettings(NetSettings):
    """Defaults: 64-128-256 channels, kernels 3-3-2, each pooled by two, 800 hidden units (MNIST, 1.03 M weights)."""

    kind: Literal["alexnet"] = "alexnet"
    channels: tuple[Positive, Positive, Positive] = (64, 128, 256)
    kernels: tuple[Positive, Positive, Positive] = (3, 3, 2)
    paddings: tuple[Count, Count, Count] = (0, 0, 0)
    pools: tuple[Positive, Positive, Positive] = (2, 2, 2)
    hidden: Positive = 800
    dropout: tuple[Fraction, Fraction] = (0.2, 0.5)
    """After the first two convolutions; after the third and the hidden layer."""
    bias: bool = True
    """False for supermask networks, which learn nothing but masks."""
    final_relu: bool = True
    """False allows negative features, for cosine classifiers. Gated methods need True."""


class AlexNet(Net):
    """conv - ReLU - dropout - max-pool, three times; then linear - ReLU - dropout. No normalisation."""

    feature_group = "fc"

    def __init__(self, settings: AlexNetSettings, image_size: int) -> None:
        super().__init__()
        groups = [None, "conv1", "conv2", "conv3"]
        widths = [3, *settings.channels]
        self.convs = nn.ModuleList(
            GatedConv2d(n_in, n_out, kernel, gate_in=before, gate_out=after or "", padding=padding, bias=settings.bias)
            for (n_in, n_out), (before, after), kernel, padding in zip(
                pairwise(widths), pairwise(groups), settings.kernels, settings.paddings, strict=True
            )
        )
        self.pools = settings.pools
        light, heavy = settings.dropout
        self.dropouts = (light, light, heavy)
        self.last_dropout = heavy
        side = self._side_after_convs(image_size, settings)
        self.fc = GatedLinear(
            widths[-1] * side * side,
            settings.hidden,
            gate_in="conv3",
            gate_out=self.feature_group,
            spread=side * side,
            bias=settings.bias,
        )
        self.n_features = settings.hidden
        self.final_relu = settings.final_relu

    @staticmethod
    def _side_after_convs(size: int, settings: AlexNetSettings) -> int:
        for kernel, padding, pool in zip(settings.kernels, settings.paddings, settings.pools, strict=True):
            size = (size + 2 * padding - kernel + 1) // pool
        if size < 1:
            raise UserError("The images are too small for this network: a layer would have no pixels.")
        return size

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values = images
        for conv, pool, p in zip(self.convs, self.pools, self.dropouts, strict=True):
            values = conv(values, task, gates, relu=not self.training)
            if p and self.training:
                values = dropout(F.relu(values), p, self.training)
                values = F.max_pool2d(values, pool) if pool > 1 else values
            else:  # the same result, with the ReLU of training on a quarter of the values
                values = max_pool(values, pool) if pool > 1 else values
                values = F.relu_(values) if self.training else values
        # Flattening is channel-major in any memory format, as `spread` requires.
        values = self.fc(torch.flatten(values, 1), gates)
        return dropout(F.relu(values) if self.final_relu else values, self.last_dropout, self.training)
