"""CLOM = HardAttention x RotationContrastive x calibration. The ablations are settings.

| variant in the paper | settings |
|---|---|
| CLOM(-c) | `calibration: none` |
| CLOM (w/o OOD) | `learning.rotations: 1` |
| s = 1 ... 700 | `attention.s_max`, `attention.binary: false` |
| memory 0 ... 20 | `memory_per_class` |
| one augmentation | `learning.augmentation: {flip, colour, crop}` |
"""

from __future__ import annotations

from collections.abc import Sequence

from clom.learning.heads import HeadSettings
from clom.learning.learners.cached_contrastive import CachedContrastive
from clom.learning.learners.contrastive import ContrastiveSettings, RotationContrastive, shared_projection
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.methods.families.base import seeded
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.masked_settings import MaskedSettings
from clom.nets import NetSettings, make_net


class ClomSettings(MaskedSettings):
    attention: HardAttentionSettings = HardAttentionSettings()
    learning: ContrastiveSettings = ContrastiveSettings()


class Clom(MaskedMethod):
    """Kim, Esmaeilpour, Xiao, Liu: Continual Learning Based on OOD Detection and Task Masking, CVPR Workshops 2022."""

    name = "clom"
    settings_type = ClomSettings

    def __init__(self, net: NetSettings, settings: ClomSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        with seeded(seed, "network"):
            network = make_net(net, image_shape[-1])
            projection = shared_projection(network) if settings.learning.projection_layer == "shared" else None
        protection = HardAttention(network, settings.attention, projection)
        # Cached features only fit a head that is solved, not one trained by SGD on fresh views.
        solved = isinstance(settings.learning.head, HeadSettings)
        learner = CachedContrastive if network.has_frozen_backbone and solved else RotationContrastive
        super().__init__(net, settings, image_shape, seed, protection, learner(settings.learning))
