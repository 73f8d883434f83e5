"""SupSup = Supermask x CrossEntropy, and SupSup (OOD in CLOM) = Supermask x RotationContrastive.

Tested by tests/methods/families/test_masked.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from clom.errors import UserError
from clom.learning.learners.base import Learner
from clom.learning.learners.contrastive import ContrastiveSettings, RotationContrastive
from clom.learning.learners.cross_entropy import CrossEntropy, CrossEntropySettings
from clom.learning.protection.supermask import MaskedHead, Supermask, SupermaskSettings
from clom.methods.families.base import seeded
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.masked_settings import MaskedSettings
from clom.nets import NetSettings, make_net


class SupSupSettings(MaskedSettings):
    supermask: SupermaskSettings = SupermaskSettings()
    learning: CrossEntropySettings = CrossEntropySettings()


class SupSupOodSettings(MaskedSettings):
    supermask: SupermaskSettings = SupermaskSettings()
    learning: ContrastiveSettings = ContrastiveSettings()


class _Supermasked(MaskedMethod):
    def __init__(
        self,
        net: NetSettings,
        settings: SupSupSettings | SupSupOodSettings,
        image_shape: Sequence[int],
        seed: int,
        learner: Learner,
    ) -> None:
        masks_only: dict[str, bool] = {name: False for name in ("affine", "bias") if name in type(net).model_fields}
        net = net.model_copy(update=masks_only)
        with seeded(seed, "network"):
            network = make_net(net, image_shape[-1])
            network.drop_biases()
            protection = Supermask(network, settings.supermask)
        super().__init__(net, settings, image_shape, seed, protection, learner)

    def n_parameters(self) -> int:
        """Random weights and trained heads, as published; without the masks, which are one bit per weight and task."""
        masked = [head.weight.numel() for head in self.heads if isinstance(head, MaskedHead)]
        learned = [p.numel() for head in self.heads if not isinstance(head, MaskedHead) for p in head.parameters()]
        return sum(p.numel() for p in self.protection.net.parameters()) + max(masked, default=0) + sum(learned)


class SupSup(_Supermasked):
    """Supermasks in superposition (Wortsman et al. 2020), task id given (scenario GG)."""

    name = "supsup"
    settings_type = SupSupSettings

    def __init__(self, net: NetSettings, settings: SupSupSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed, CrossEntropy(settings.learning))


class SupSupOod(_Supermasked):
    """SupSup's protection with CLOM's learner: shows that CIL accuracy depends on the learner, not on the masks."""

    name = "supsup-ood"
    settings_type = SupSupOodSettings

    def __init__(
        self, net: NetSettings, settings: SupSupOodSettings, image_shape: Sequence[int], seed: int = 0
    ) -> None:
        if settings.learning.projection_layer == "shared":
            raise UserError(f"{self.name} has no gates for a shared projection: set learning.projection_layer to task.")
        super().__init__(net, settings, image_shape, seed, RotationContrastive(settings.learning))
