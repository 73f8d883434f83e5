"""A frozen pretrained backbone with a small residual adapter, masked per task.

`h(x, k) = f(x) + scale_k * W2 (a_k relu(W1 f(x) + b1))`: the pretrained features f pass through unchanged, which works
best for few photos. They are the same for all tasks, so only the adapter needs protection: its units are gated, and its
scales are per task and start at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.nets.gates import Gates
from clom.nets.layers import GatedLinear, GatedResidual, Net
from clom.nets.pretrained.efficientnet_lite import EfficientNetLite, PretrainedSettings
from clom.settings import Positive

_AT_ONCE = 64


class AdapterSettings(PretrainedSettings):
    """The frozen backbone, and the number of adapter units shared by all tasks (`hidden`; unused without adapters)."""

    hidden: Positive = 512


class AdapterNet(Net):
    """Takes images, or precomputed features of the frozen backbone."""

    feature_group = None  # the pretrained features are never closed
    has_frozen_backbone = True

    def __init__(self, settings: AdapterSettings) -> None:
        super().__init__()
        self.backbone = EfficientNetLite(settings)
        self.n_features = self.backbone.n_features
        self.inner = GatedLinear(self.n_features, settings.hidden, gate_in=None, gate_out="adapter")
        self.outer = GatedResidual(settings.hidden, self.n_features, gate_in="adapter")

    def frozen_features(self, images: Tensor) -> Tensor:
        """Features computed in batches: the widest layer needs two megabytes per image at 160 pixels."""
        if images.ndim == 2:
            return images
        return torch.cat([self.backbone(part) for part in torch.split(images, _AT_ONCE)])

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        pretrained = self.frozen_features(images)
        features: Tensor = self.outer(F.relu(self.inner(pretrained, gates)), pretrained, task)
        return features
