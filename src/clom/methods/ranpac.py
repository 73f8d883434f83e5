"""RanPAC: ridge regression on random ReLU features (McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel 2023).

`phi(x) = max(0, W x)` with normal W that never changes. The Gram matrix of phi and its sums per class follow from the
class means and the scatter matrix, so the statistics are those of the other streaming classifiers. The publication also
adapts the backbone to the first task, by gradient descent; here it stays as it is.

Tested by tests/methods/test_streaming.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.learning.heads import ridge
from clom.learning.loop import generator
from clom.methods.families.frozen import FrozenSettings
from clom.methods.streaming import StreamingMethod
from clom.nets import NetSettings
from clom.settings import Positive

PENALTIES = tuple(10.0**exponent for exponent in range(-2, 7))
"""The ridge penalties to choose from, relative to the mean squared length of phi over its dimension."""
_HELD_OUT = 5  # one photo in five chooses the penalty


class RanpacSettings(FrozenSettings):
    directions: Positive = 2048
    """The dimension of phi; the publication has 10,000, for features of 768."""


class Ranpac(StreamingMethod):
    """`W = (G + l I)^-1 C` with the Gram matrix G of phi and its sums C per class; no bias."""

    name = "ranpac"
    settings_type = RanpacSettings
    settings: RanpacSettings
    penalty: Tensor
    """l; chosen in every lesson on held-out photos of the new classes, as published."""

    def __init__(self, net: NetSettings, settings: RanpacSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed, settings.directions)
        randomness = generator(seed, "relu features")
        self.random = ReluFeatures(torch.randn(settings.directions, self.backbone.n_features, generator=randomness))
        self.register_buffer("penalty", torch.ones((), dtype=torch.float64))

    def lift(self, features: Tensor) -> Tensor:
        lifted: Tensor = self.random(features)
        return lifted

    def lift_graph(self) -> nn.Module:
        return self.random

    def solve(self) -> tuple[Tensor, Tensor]:
        counts = self.counts_or_zeros().to(self.means)
        sums = counts[:, None] * self.means
        weight = ridge(self.scatter + self.means.T @ sums, sums, float(self.penalty))
        return weight, torch.zeros(len(weight)).to(weight)

    def _prepare(self, features: Tensor, rows: Tensor) -> None:
        """Choose the penalty by the squared error on one photo in five, each fold's classes included."""
        held = torch.arange(len(rows)).to(rows.device) % _HELD_OUT == 0
        missing = set(rows.tolist()) - set(rows[~held].tolist())
        if missing or not bool(held.any()):
            return
        twin = self._twin()
        twin.absorb(self.lift_views(features[~held]), rows[~held])
        lifted, targets = self.lift(features[held, 0]).double(), F.one_hot(rows[held], len(self.means)).double()
        size = float((twin.scatter.diagonal().mean() + twin.means.pow(2).mean()).clamp(min=1e-12))
        errors = {}
        for penalty in PENALTIES:
            twin.penalty = torch.tensor(penalty * size, dtype=torch.float64).to(self.penalty.device)
            errors[penalty * size] = float((lifted @ twin.solve()[0].T - targets).pow(2).mean())
        self.penalty = torch.tensor(min(errors, key=lambda penalty: errors[penalty]), dtype=torch.float64).to(
            self.penalty.device
        )

    def _fit_cost(self) -> float:
        return 2 * super()._fit_cost()  # the choice of the penalty, divided among the fits


class ReluFeatures(nn.Module):
    """`max(0, W x)`."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight).relu()
