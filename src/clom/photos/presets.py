"""Untrained models for photos: methods, backbones and settings for small data sets."""

from __future__ import annotations

from typing import Any

from clom.errors import UserError, unknown
from clom.methods.families.base import Method
from clom.methods.registry import method_class
from clom.nets import AdapterSettings, NetSettings, ResNet18Settings

METHODS = ("clom", "ncm", "slda")

# Backbone -> its settings and the input resolution.
NETS: dict[str, tuple[NetSettings, int]] = {
    "efficientnet-lite0": (AdapterSettings(hidden=256), 160),
    "resnet-18": (ResNet18Settings(width=16), 64),
}

# Settings that differ from the defaults, by method and backbone. Those for pretrained features were chosen by five-fold
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
    ("ncm", "efficientnet-lite0"): {},
    ("slda", "efficientnet-lite0"): {},
}


def new_method(method: str = "clom", backbone: str = "efficientnet-lite0", seed: int = 0) -> Method:
    """An untrained method for square colour photos of size `image_shape`."""
    if method not in METHODS:
        raise unknown("method for photos", method, METHODS)
    if backbone not in NETS:
        raise unknown("backbone", backbone, NETS)
    if (method, backbone) not in RECIPES:
        raise UserError(f"{method} reads pretrained features: it needs the backbone 'efficientnet-lite0'.")
    net, size = NETS[backbone]
    maker = method_class(method)
    return maker(net, maker.settings_type.model_validate(RECIPES[method, backbone]), (3, size, size), seed)
