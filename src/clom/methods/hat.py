"""HAT = HardAttention x CrossEntropy (Serra et al. 2018): CLOM's masks with an ordinary classifier per task.

Tested by tests/methods/families/test_masked.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from clom.learning.learners.cross_entropy import CrossEntropy, CrossEntropySettings
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.methods.families.base import seeded
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.masked_settings import MaskedSettings
from clom.nets import NetSettings, make_net


class HatSettings(MaskedSettings):
    attention: HardAttentionSettings = HardAttentionSettings(s_max=400.0)
    learning: CrossEntropySettings = CrossEntropySettings()


class Hat(MaskedMethod):
    """Overcoming catastrophic forgetting with hard attention to the task."""

    name = "hat"
    settings_type = HatSettings

    def __init__(self, net: NetSettings, settings: HatSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        with seeded(seed, "network"):
            network = make_net(net, image_shape[-1])
        protection = HardAttention(network, settings.attention)
        super().__init__(net, settings, image_shape, seed, protection, CrossEntropy(settings.learning))
