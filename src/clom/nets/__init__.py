"""Networks: gated ones, whose layers know the gates of their inputs and outputs, and plain ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clom.nets.building import make_net
    from clom.nets.convert import to_gated
    from clom.nets.layers import Net
    from clom.nets.net_settings import NetSettings
    from clom.nets.networks.adapters import AdapterNet, AdapterSettings
    from clom.nets.networks.alexnet import AlexNet, AlexNetSettings
    from clom.nets.networks.pooled import PooledConv, PooledConvSettings
    from clom.nets.networks.resnet import ResNet18, ResNet18Settings

_PLACES = {
    "AdapterNet": "networks.adapters",
    "AdapterSettings": "networks.adapters",
    "AlexNet": "networks.alexnet",
    "AlexNetSettings": "networks.alexnet",
    "Net": "layers",
    "NetSettings": "net_settings",
    "PooledConv": "networks.pooled",
    "PooledConvSettings": "networks.pooled",
    "ResNet18": "networks.resnet",
    "ResNet18Settings": "networks.resnet",
    "make_net": "building",
    "to_gated": "convert",
}

__all__ = [
    "AdapterNet",
    "AdapterSettings",
    "AlexNet",
    "AlexNetSettings",
    "Net",
    "NetSettings",
    "PooledConv",
    "PooledConvSettings",
    "ResNet18",
    "ResNet18Settings",
    "make_net",
    "to_gated",
]


def __getattr__(name: str) -> Any:
    # Imported lazily: network names must be available without torch, which takes a second to import.
    if name in _PLACES:
        return getattr(import_module(f"clom.nets.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'clom.nets' has no attribute '{name}'")
