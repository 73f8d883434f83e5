"""The same networks without gates: one network that all tasks share, and heads that grow."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets import NetSettings, make_net
from clom.nets.data_parallel import split_over_ranks


class Backbone(nn.Module):
    """Features of images in [0, 1]: a gated network with all gates open and one normalisation for all tasks."""

    def __init__(self, settings: NetSettings, image_size: int) -> None:
        super().__init__()
        self.net = make_net(settings, image_size)
        self.net.add_task()
        self.n_features = self.net.n_features

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            return split_over_ranks(lambda part: cast(Tensor, self.net(part, 0, {})), images)
        features: Tensor = self.net(images, 0, {})
        return features


class LinearHead(nn.Module):
    """A linear classifier that grows by one part per task, so that growing never touches what was there."""

    def __init__(self, n_features: int, bias: bool = True) -> None:
        super().__init__()
        self.n_features, self.bias = n_features, bias
        self.parts = nn.ModuleList()

    def grow(self, n_outputs: int) -> None:
        self.parts.append(nn.Linear(self.n_features, n_outputs, bias=self.bias))

    def forward(self, features: Tensor) -> Tensor:
        """`[n, outputs of all tasks]`, in the order in which the tasks came."""
        return torch.cat([part(features) for part in self.parts], 1)


class CosineHead(nn.Module):
    """`sigma <h/|h|, w/|w|>` with one learned sigma and no bias; grows by one part per task."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        self.parts = nn.ParameterList()
        self.sigma = nn.Parameter(torch.ones(()))

    def grow(self, n_outputs: int) -> None:
        rows = torch.empty(n_outputs, self.n_features)
        nn.init.kaiming_uniform_(rows, a=5**0.5)
        self.parts.append(nn.Parameter(rows))

    def forward(self, features: Tensor) -> Tensor:
        rows = F.normalize(torch.cat(list(self.parts)))
        return self.sigma * F.linear(F.normalize(features), rows)

    @torch.no_grad()
    def imprint(self, features: Tensor, labels: Tensor) -> None:
        """Start the newest rows at their classes' mean direction, as long as the older rows are on average."""
        *old, new = self.parts
        length = torch.cat(old).norm(dim=1).mean() if old else torch.ones(())
        new.copy_(length * torch.stack([mean_direction(features[labels == label]) for label in range(len(new))]))


def mean_direction(features: Tensor) -> Tensor:
    """The unit vector towards the mean of the normalised features."""
    return F.normalize(F.normalize(features).mean(0), dim=0)
