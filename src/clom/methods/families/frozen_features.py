"""The frozen backbone of a method, and the features of photos in several views.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.errors import UserError
from clom.methods.families.base import Method, seeded
from clom.nets import NetSettings
from clom.nets.networks.registry import NETS
from clom.nets.plain import Backbone
from clom.nets.pretrained.efficientnet_lite import EfficientNetLite, PretrainedSettings
from clom.nets.pretrained.feature_cache import FeatureCache
from clom.nets.pretrained.photo_views import PHOTO_VIEWS
from clom.plugins import BUILT_IN
from clom.settings import Positive, Settings

PRETRAINED = ("efficientnet-lite0", "efficientnet-lite2", "onnx")
"""The built-in networks that come with trained weights."""
_BATCH = 32


class FrozenSettings(Settings):
    """Settings of all classifiers on frozen features."""

    views: Positive = 1
    """Views of each training photo, the first of `clom.nets.pretrained.photo_views`. At inference there is one: the
    photo itself."""


class FrozenFeatures(Method):
    """A method that reads images through a frozen backbone."""

    needs_pretrained = True
    settings: FrozenSettings

    def __init__(self, net: NetSettings, settings: FrozenSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        if settings.views > len(PHOTO_VIEWS):
            raise UserError(f"There are {len(PHOTO_VIEWS)} views of a photo, not {settings.views}.")
        with seeded(seed, "network"):
            self.backbone = _backbone(net, image_shape[-1], self.name)
        self.backbone.eval().requires_grad_(False)
        self.cache: FeatureCache | None = None
        """If set, no view of a photo is computed twice."""

    @torch.no_grad()
    def embed(self, pixels: Tensor, view: str = "plain") -> Tensor:
        """The frozen features of one view of images."""
        if self.cache is None or pixels.dtype != torch.uint8:
            return self._computed(pixels, view)
        return self.cache(pixels, view, lambda new: self._computed(new, view)).to(self.device)

    def _computed(self, pixels: Tensor, view: str) -> Tensor:
        features = [torch.empty(0, self.backbone.n_features, device=self.device)]
        for part in torch.split(pixels, _BATCH) if len(pixels) else ():
            images = PHOTO_VIEWS[view](to_unit(part.to(self.device)))
            features.append(self.backbone(images.contiguous(memory_format=torch.channels_last)))
        return torch.cat(features)

    def embed_views(self, pixels: Tensor, on_photos: Callable[[int], None]) -> Tensor:
        """`[photos, views, d]`; the first view is the photo itself. `on_photos` is told how many were computed."""
        views = []
        for view in list(PHOTO_VIEWS)[: self.settings.views]:
            parts = []
            for part in torch.split(pixels, _BATCH):
                parts.append(self.embed(part, view))
                on_photos(len(part))
            views.append(torch.cat(parts))
        return torch.stack(views, 1)

    def features(self, pixels: Tensor, task: int) -> Tensor:
        """The same for every task."""
        return self.embed(pixels).cpu()

    def exported_backbone(self) -> nn.Module:
        """The backbone as a part of an exported graph."""
        if self.net_settings.kind == "onnx":
            raise UserError("A model whose backbone is an ONNX file cannot be exported.")
        backbone: nn.Module = self.backbone
        return backbone


def _backbone(net: NetSettings, image_size: int, method: str) -> Any:
    """The network with its trained weights: pretrained, or a person's own."""
    if isinstance(net, PretrainedSettings):
        return EfficientNetLite(net)
    if NETS.entry(net.kind).origin == BUILT_IN and net.kind not in PRETRAINED:
        raise UserError(f"{method} needs pretrained features: set net.kind to 'efficientnet-lite0'.")
    backbone = Backbone(net, image_size)
    if not backbone.is_plain:
        raise UserError(f"{method} needs a network without gates, not '{net.kind}'.")
    return backbone
