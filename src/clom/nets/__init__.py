"""Networks whose layers know which gates their inputs and outputs pass through."""

from __future__ import annotations

from clom.nets.layers import Net
from clom.nets.networks.adapters import AdapterNet, AdapterSettings
from clom.nets.networks.alexnet import AlexNet, AlexNetSettings
from clom.nets.networks.pooled import PooledConv, PooledConvSettings
from clom.nets.networks.resnet import ResNet18, ResNet18Settings

NetSettings = AlexNetSettings | ResNet18Settings | PooledConvSettings | AdapterSettings


def make_net(settings: NetSettings, image_size: int) -> Net:
    """The network that `settings` describes, for square images of `image_size` pixels."""
    if isinstance(settings, AlexNetSettings):
        return AlexNet(settings, image_size)
    if isinstance(settings, PooledConvSettings):
        return PooledConv(settings)
    if isinstance(settings, AdapterSettings):
        return AdapterNet(settings)
    return ResNet18(settings)


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
]
