"""The small network used for SupSup on MNIST: three convolutions, global pooling, one hidden layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets.data_parallel import dropout
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, GatedLinear, Net
from clom.nets.net_settings import NetSettings
from clom.settings import Fraction, Positive


class PooledConvSettings(NetSettings):
    """Defaults: 64-128-256 channels, 3x3 kernels, 800 hidden units; 576,768 weights with two outputs and no biases."""

    kind: Literal["pooled-conv"] = "pooled-conv"
    channels: tuple[Positive, Positive, Positive] = (64, 128, 256)
    hidden: Positive = 800
    dropout: tuple[Fraction, Fraction] = (0.2, 0.5)
    """After the convolutions; after the hidden layer."""
    bias: bool = False


class PooledConv(Net):
    """conv, conv - ReLU, conv - ReLU, each followed by 2x2 max-pooling; global average pooling; linear - ReLU.

    There is no ReLU after the first convolution, as in the code used by the paper.
    """

    feature_group = "fc"

    def __init__(self, settings: PooledConvSettings) -> None:
        super().__init__()
        widths, groups = [3, *settings.channels], [None, "conv1", "conv2", "conv3"]
        self.convs = nn.ModuleList(
            GatedConv2d(n_in, n_out, 3, padding=1, gate_in=before, gate_out=after or "", bias=settings.bias)
            for (n_in, n_out), (before, after) in zip(pairwise(widths), pairwise(groups), strict=True)
        )
        self.fc = GatedLinear(
            widths[-1], settings.hidden, gate_in="conv3", gate_out=self.feature_group, bias=settings.bias
        )
        self.dropout = settings.dropout
        self.n_features = settings.hidden

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        light, heavy = self.dropout
        values = images
        for number, conv in enumerate(self.convs):
            values = conv(values, task, gates)
            values = dropout(F.relu(values) if number else values, light, self.training)
            if min(values.shape[2:]) > 1:
                values = F.max_pool2d(values, 2)
        values = F.relu(self.fc(values.mean((2, 3)), gates))
        return dropout(values, heavy, self.training)
