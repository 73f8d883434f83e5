"""Default settings for data without a recipe, by image layout and number of training steps.

Tested by tests/estimator/test_classifier.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clom.estimator.arrays import Layout
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.methods.families.base import Method
from clom.methods.registry import method_class, method_info
from clom.nets import AdapterSettings, AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.networks.kinds import read_net_settings
from clom.nets.networks.registry import NETS
from clom.settings import Settings, merged, set_dotted

BACKBONES = ("auto", "alexnet", "resnet18", "efficientnet-lite0")
_COLOUR_SIDE = 32
"""Colour images of at least this size use the residual network."""
_SHORTEST_SWEEP = 8


def net_for(method: str, backbone: str | Mapping[str, Any], layout: Layout) -> NetSettings:
    """The named network at a width suited to CPUs, or the one described by a mapping."""
    if isinstance(backbone, Mapping):
        if backbone.get("kind") not in NETS:
            raise ValueError(f"backbone needs a kind, which is one of {', '.join(NETS.names())}.")
        return read_net_settings(backbone)
    if backbone in NETS and backbone not in BACKBONES:
        return read_net_settings({"kind": backbone})
    if backbone not in BACKBONES:
        raise ValueError(f"backbone is {', '.join(BACKBONES)} or a mapping of settings, not {backbone!r}.")
    if backbone == "efficientnet-lite0" or (backbone == "auto" and method_class(method).needs_pretrained):
        return AdapterSettings()
    colourful = layout.shape[0] == 3 and layout.side >= _COLOUR_SIDE
    if backbone == "resnet18" or (backbone == "auto" and colourful):
        return ResNet18Settings(width=16)
    if layout.side < 16:
        return AlexNetSettings(channels=(64, 64, 128), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=256, dropout=(0, 0))
    return AlexNetSettings(channels=(32, 64, 128), hidden=512, dropout=(0, 0))


def settings_for(
    method: str, layout: Layout, n_images: int, steps: int, given: Mapping[str, Any] | None = None
) -> Settings:
    """The method's settings for one task of `n_images`, with enough epochs for about `steps` steps.

    Settings in `given` take precedence, including the number of epochs.
    """
    kind = method_class(method).settings_type
    learning = kind.model_fields.get("learning")
    values: dict[str, Any] = {}
    if learning is not None and learning.annotation is ContrastiveSettings:
        values = {"learning": {"augmentation": _augmentation(layout)}}
    for name, value in method_info(method).preset:
        set_dotted(values, name, value)
    values = merged(values, given or {})
    settings = kind.model_validate(values)
    return kind.model_validate(merged(_length(settings, n_images, steps), values))


def _augmentation(layout: Layout) -> dict[str, Any]:
    """No augmentation for vectors; horizontal flips for colour images only, since few other images are symmetric."""
    if not layout.picture:
        return {"flip": False, "colour": False, "crop": False}
    colourful = layout.shape[0] == 3
    return {"flip": colourful, "crop_area": [0.3, 1.0] if colourful else [0.5, 1.0]}


def _length(settings: Settings, n_images: int, steps: int) -> dict[str, Any]:
    """Settings for a training length of `steps` steps; empty for methods without training."""
    group = getattr(settings, "learning", settings)
    plan = getattr(group, "plan", None)
    if not isinstance(plan, Plan):
        return {}
    per_epoch = max(1, round(n_images / plan.batch))
    length: dict[str, Any] = {"plan": {"epochs": max(1, round(steps / per_epoch))}}
    if "sweep" in type(group).model_fields:
        # Gates are annealed within an epoch; with only one or two steps they would not become binary.
        length["sweep"] = max(per_epoch, min(_SHORTEST_SWEEP, steps))
    return length if group is settings else {"learning": length}


def with_settings(method: Method, settings: Settings) -> Method:
    """The same trained method with other settings for its next task."""
    if settings == method.settings:
        return method
    other = type(method)(method.net_settings, settings, method.image_shape, method.seed)
    for task in method.tasks:
        other.open_task(task)
    other.load_state_dict(method.state_dict())
    return other.eval()
