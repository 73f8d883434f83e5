"""KLDA: linear discriminant analysis on random Fourier features (Momeni, Mazumder, Liu 2025).

The features approximate those of a Gaussian kernel (Rahimi and Recht 2007): `phi(x) = sqrt(2 / D) cos(W x + u)` with
normal W and uniform u. Classes then differ by more than a linear boundary, and still need one covariance only.

Tested by tests/methods/test_streaming.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.learning.heads import discriminants
from clom.learning.loop import generator
from clom.methods.families.frozen import FrozenSettings
from clom.methods.streaming import StreamingMethod
from clom.nets import NetSettings
from clom.settings import Positive, PositiveNumber, Share


class KldaSettings(FrozenSettings):
    directions: Positive = 2048
    """D; the publication has 5000."""
    bandwidth: PositiveNumber = 1.0
    """Of the Gaussian kernel, for features of length one."""
    shrinkage: Share = 0.3


class Klda(StreamingMethod):
    """`w_c = C^-1 mu_c`, `b_c = -mu_c w_c / 2` in the space of phi."""

    name = "klda"
    settings_type = KldaSettings
    settings: KldaSettings

    def __init__(self, net: NetSettings, settings: KldaSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed, settings.directions)
        randomness = generator(seed, "fourier features")
        weight = torch.randn(settings.directions, self.backbone.n_features, generator=randomness) / settings.bandwidth
        phase = 2 * math.pi * torch.rand(settings.directions, generator=randomness)
        self.random = FourierFeatures(weight, phase)

    def lift(self, features: Tensor) -> Tensor:
        lifted: Tensor = self.random(features)
        return lifted

    def lift_graph(self) -> nn.Module:
        return self.random

    def solve(self) -> tuple[Tensor, Tensor]:
        return discriminants(self.means, self.scatter / self.n_samples, self.settings.shrinkage)


class FourierFeatures(nn.Module):
    """`sqrt(2 / D) cos(W x / |x| + u)`."""

    weight: Tensor
    phase: Tensor

    def __init__(self, weight: Tensor, phase: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("phase", phase)

    def forward(self, features: Tensor) -> Tensor:
        angles = F.linear(F.normalize(features), self.weight, self.phase)
        return math.sqrt(2 / len(self.phase)) * angles.cos()
