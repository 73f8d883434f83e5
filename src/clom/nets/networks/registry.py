"""The registry of networks by `kind`; their code is imported lazily, so that listing them is fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from clom.errors import UserError, shorten
from clom.plugins import Registry

if TYPE_CHECKING:
    from pydantic import BaseModel
    from torch import nn

Maker: TypeAlias = "Callable[..., nn.Module]"
"""A subclass of `nn.Module`, or a function that returns a module."""
N = TypeVar("N", bound="Callable[..., nn.Module]")


def _check(thing: object) -> None:
    from torch import nn

    if isinstance(thing, nn.Module):
        raise UserError(
            f"Register a network as a class or a function that creates it, not as an instance "
            f"({type(thing).__name__}): every model needs its own."
        )
    if not callable(thing) or (isinstance(thing, type) and not issubclass(thing, nn.Module)):
        name = thing.__name__ if isinstance(thing, type) else shorten(repr(thing))
        raise UserError(f"'{name}' is not a network: it must be a class derived from torch.nn.Module.")


NETS: Registry[Maker] = Registry(
    "network",
    "clom.networks",
    {
        "alexnet": (
            "clom.nets.networks.alexnet:AlexNet",
            "AlexNet-like: three convolutions, one hidden layer; the paper's for MNIST",
        ),
        "resnet18": (
            "clom.nets.networks.resnet:ResNet18",
            "ResNet-18 for small images, of any width; the paper's for CIFAR and Tiny-ImageNet",
        ),
        "pooled-conv": (
            "clom.nets.networks.pooled:PooledConv",
            "three convolutions, global pooling, one hidden layer; SupSup's for MNIST",
        ),
        "efficientnet-lite0": (
            "clom.nets.networks.adapters:AdapterNet",
            "EfficientNet-Lite0 with frozen ImageNet weights and a small adapter, for photos",
        ),
        "efficientnet-lite2": (
            "clom.nets.pretrained.efficientnet_lite:lite2",
            "EfficientNet-Lite2 with frozen ImageNet weights, for classifiers on frozen features",
        ),
        "onnx": (
            "clom.nets.pretrained.onnx_file:OnnxFile",
            "your own ONNX file, frozen, for classifiers on frozen features",
        ),
    },
    _check,
)
"""All networks: built in, registered, or from installed packages."""


def register_network(name: str, *, settings_type: type[BaseModel] | None = None) -> Callable[[N], N]:
    """A decorator that registers a network as `net: {kind: NAME}`.

    The network is an `nn.Module` that maps images `[n, 3, h, w]` in [0, 1] to features `[n, d]`, or a gated one derived
    from `clom.nets.layers.Net`. `settings_type` is needed only if the constructor's annotations do not define it.
    """
    register = NETS.register(name)

    def decorate(maker: N) -> N:
        register(maker)
        if settings_type is not None:
            maker.settings_type = settings_type  # type: ignore[attr-defined]
        return maker

    return decorate
