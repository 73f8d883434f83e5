"""Networks: gated ones, whose layers know which gates their inputs and outputs pass through, and plain ones."""

from __future__ import annotations

from clom.nets.convert import to_gated
from clom.nets.layers import Net
from clom.nets.net_settings import NetSettings
from clom.nets.networks.adapters import AdapterNet, AdapterSettings
from clom.nets.networks.alexnet import AlexNet, AlexNetSettings
from clom.nets.networks.pooled import PooledConv, PooledConvSettings
from clom.nets.networks.registry import network_kind
from clom.nets.networks.resnet import ResNet18, ResNet18Settings


def make_net(settings: NetSettings, image_size: int) -> Net:
    """The gated network that `settings` describes, for square images of that many pixels; a plain one is converted."""
    net = network_kind(settings.kind).build(settings, image_size)
    return net if isinstance(net, Net) else to_gated(net, (3, image_size, image_size))


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
