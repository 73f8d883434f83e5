"""Untrained models for photos: methods, backbones and settings for small data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from clom.errors import UserError, unknown
from clom.methods.families.base import Method
from clom.methods.families.frozen_features import FrozenFeatures
from clom.methods.registry import method_class
from clom.nets import AdapterSettings, NetSettings, ResNet18Settings
from clom.nets.networks.kinds import read_net_settings
from clom.nets.networks.registry import NETS
from clom.nets.pretrained.efficientnet_lite import Lite2Settings, PretrainedSettings
from clom.nets.pretrained.onnx_file import OnnxFile, read_onnx

DEFAULT_METHOD, DEFAULT_BACKBONE = "experts", "efficientnet-lite0"
ON_FROZEN_FEATURES = ("experts", "slda", "ncm", "ranpac", "klda")
METHODS = (*ON_FROZEN_FEATURES, "clom")
BACKBONES = ("efficientnet-lite0", "efficientnet-lite2", "resnet-18")
"""By name; a backbone can also be an ONNX file, or a person's own module."""
SIZES = {"efficientnet-lite2": 224, "resnet-18": 64}
DEFAULT_SIZE, LEAST_SIZE, MOST_SIZE = 160, 32, 512

# Settings that differ from the defaults. Those of CLOM with pretrained features were chosen by five-fold
# cross-validation within 40 photos of each of seven classes, where most differences are small. A discriminant head is
# better than logistic regression, mainly for CIL (73 against 65); colour augmentation hurts; the unrotated photo should
# weigh as much as its three rotations together. Adapters that change the features by a tenth do no harm, by half they
# do, hence the low learning rate. The settings for the network trained from scratch are not tuned.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("clom", "efficientnet-lite0"): {
        "attention": {"sparsity_first": 0.05, "sparsity_rest": 0.05},
        "learning": {
            "augmentation": {"crop_area": (0.5, 1.0), "colour": False},
            "plan": {"epochs": 15, "batch": 32, "schedule": {"warmup": 1}},
            "optimiser": {"kind": "adam", "lr": 1e-3},
            "head": {"kind": "discriminant", "shrinkage": 0.7, "views": 3, "upright": 0.5},
        },
    },
    ("clom", "resnet-18"): {
        "learning": {
            "augmentation": {"crop_area": (0.3, 1.0)},
            "plan": {"epochs": 20, "batch": 32, "schedule": {"warmup": 1}},
            "cross_entropy": 1.0,
            "head": {"views": 2},
        },
    },
}

_ON_FROZEN_FEATURES: dict[str, Any] = {"views": 2}  # each photo and its horizontal flip, for all of them alike


def new_method(
    method: str = DEFAULT_METHOD, backbone: str = DEFAULT_BACKBONE, seed: int = 0, size: int | None = None
) -> Method:
    """An untrained method for square colour photos of `size` pixels, by default those that suit the backbone."""
    if method not in METHODS:
        raise unknown("method for photos", method, METHODS)
    side = SIZES.get(backbone, DEFAULT_SIZE) if size is None else size
    if not LEAST_SIZE <= side <= MOST_SIZE:
        raise UserError(f"Photos of {side} pixels are not supported: choose --size from {LEAST_SIZE} to {MOST_SIZE}.")
    net, onnx = _network(method, backbone, side)
    maker = method_class(method)
    recipe = _ON_FROZEN_FEATURES if method in ON_FROZEN_FEATURES else RECIPES.get((method, backbone), {})
    made = maker(net, maker.settings_type.model_validate(recipe), (3, side, side), seed)
    if onnx is not None:
        assert isinstance(made, FrozenFeatures)
        (place,) = (part for part in made.modules() if isinstance(part, OnnxFile))
        place.content.copy_(onnx)
    return made


def _network(method: str, backbone: str, size: int) -> tuple[NetSettings, Tensor | None]:
    """The settings of the backbone and, if it is an ONNX file, its content."""
    frozen = method in ON_FROZEN_FEATURES
    if backbone.endswith(".onnx") and frozen:
        return read_onnx(Path(backbone), size)
    if backbone == "efficientnet-lite0":
        return (PretrainedSettings(features="stages") if frozen else AdapterSettings(hidden=256)), None
    if backbone == "efficientnet-lite2" and frozen:
        return Lite2Settings(features="stages"), None
    if backbone == "resnet-18" and not frozen:
        return ResNet18Settings(width=16), None
    if ":" in backbone and frozen:
        return read_net_settings({"kind": NETS.named(backbone)}), None
    if frozen and backbone in NETS.names():
        return read_net_settings({"kind": backbone}), None
    if backbone in BACKBONES or backbone.endswith(".onnx") or ":" in backbone:
        needs = "'efficientnet-lite0'" if frozen else "'efficientnet-lite0' or 'resnet-18'"
        reads = "reads pretrained features" if frozen else "trains its own layers"
        raise UserError(f"{method} {reads}: it needs the backbone {needs}.")
    raise unknown("backbone", backbone, BACKBONES)
