"""Networks without gates, shared by all tasks, and growing heads."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.data_parallel import dropout, split_over_ranks, world_size
from clom.nets.layers import Net, gated_norm
from clom.nets.net_settings import NetSettings
from clom.nets.networks.kinds import network_kind
from clom.nets.passes import CountedNetwork


class Backbone(CountedNetwork):
    """Features of images in [0, 1], from a plain network, or from a gated one with open gates and one batch norm for
    all tasks."""

    net: nn.Module
    is_plain = False
    """Whether it has no gates."""

    def __init__(self, settings: NetSettings, image_size: int) -> None:
        super().__init__()
        self.net = network_kind(settings.kind).build(settings, image_size)
        self.n_features = cast(int, self.net.n_features)
        self.is_plain = not isinstance(self.net, Net)
        if isinstance(self.net, Net):
            self.net.add_task()
        elif world_size() > 1:
            _over_ranks(self.net)

    def forward(self, images: Tensor) -> Tensor:
        return split_over_ranks(self._features, images) if self.training else self._features(images)

    def _features(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images.contiguous()) if self.is_plain else self.net(images, 0, {})
        return features


def set_layout(module: nn.Module) -> None:
    """Convert to channels_last, in which convolutions are fastest. Plug-in networks stay contiguous, which much code
    relies on (`x.view(len(x), -1)`)."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for part in module.modules():
        if isinstance(part, Backbone) and part.is_plain:
            part.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class _BatchNorm2d(nn.BatchNorm2d):
    """Batch norm of a batch that is split over ranks."""

    def forward(self, values: Tensor) -> Tensor:
        return gated_norm(self, values, None)


class _Dropout(nn.Dropout):
    """Dropout of a batch that is split over ranks."""

    def forward(self, values: Tensor) -> Tensor:
        return dropout(values, self.p, self.training)


def _over_ranks(net: nn.Module) -> None:
    """Replace layers that depend on the whole batch by versions for a batch that is split over ranks."""
    for name, module in net.named_modules():
        if type(module) in (nn.BatchNorm2d, nn.Dropout):
            module.__class__ = _BatchNorm2d if type(module) is nn.BatchNorm2d else _Dropout
        elif isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            raise UserError(
                f"The layer '{name}' ({type(module).__name__}) does not support several processes. Start the run "
                "without torchrun."
            )


class LinearHead(nn.Module):
    """A linear classifier that grows by one part per task, so that growing never changes existing parts."""

    def __init__(self, n_features: int, bias: bool = True) -> None:
        super().__init__()
        self.n_features, self.bias = n_features, bias
        self.parts = nn.ModuleList()

    @property
    def n_outputs(self) -> int:
        return sum(len(part.get_parameter("weight")) for part in self.parts)

    def grow(self, n_outputs: int) -> None:
        self.parts.append(nn.Linear(self.n_features, n_outputs, bias=self.bias))

    def forward(self, features: Tensor) -> Tensor:
        """`[n, outputs of all tasks]`, in task order."""
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
        """Initialise the newest rows with their classes' mean direction and the average norm of the older rows."""
        *old, new = self.parts
        length = torch.cat(old).norm(dim=1).mean() if old else torch.ones(())
        new.copy_(length * torch.stack([mean_direction(features[labels == label]) for label in range(len(new))]))


def mean_direction(features: Tensor) -> Tensor:
    """The normalised mean of the normalised features."""
    return F.normalize(F.normalize(features).mean(0), dim=0)
