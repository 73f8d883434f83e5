"""Settings classes of networks, and building networks from them.

A network is a class or a function. Its settings follow from its parameters: either one parameter `settings`, annotated
with a settings class, as in the built-in networks, or keyword parameters, each of which becomes a setting. A parameter
`image_size` receives the side of the images.

Tested by tests/nets/networks/test_registry.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, cast, get_type_hints

import torch
from pydantic import BaseModel, PlainValidator, PydanticUserError, SerializeAsAny, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from torch import Tensor, nn

from clom.errors import UserError, shorten
from clom.nets.layers import Net
from clom.nets.net_settings import NetSettings
from clom.nets.networks.registry import NETS, Maker
from clom.plugins import BUILT_IN, why


@dataclass(frozen=True)
class NetworkKind:
    """A registered network with its settings class."""

    name: str
    maker: Maker
    settings_type: type[NetSettings]
    takes_settings: bool
    """Whether settings are passed as one object instead of keywords."""
    takes_image_size: bool

    def build(self, settings: NetSettings, image_size: int) -> nn.Module:
        """A newly initialised network for square images of `image_size` pixels."""
        values = {name: getattr(settings, name) for name in type(settings).model_fields if name != "kind"}
        options: dict[str, Any] = {"settings": settings} if self.takes_settings else values
        if self.takes_image_size:
            options["image_size"] = image_size
        if NETS.entry(self.name).origin == BUILT_IN:
            return self.maker(**options)
        try:
            net = self.maker(**options)
        except UserError:
            raise
        except Exception as problem:
            raise UserError(f"The network '{self.name}' cannot be built: {why(problem)}.") from problem
        if not isinstance(net, nn.Module):
            raise UserError(f"The network '{self.name}' is not a module: its function returned {shorten(repr(net))}.")
        if not isinstance(net, Net):
            _set_n_features(net, self.name, image_size)
        return net


def network_kind(name: str) -> NetworkKind:
    return _described(name, NETS.get(name))


def read_net_settings(values: object) -> NetSettings:
    """Settings from plain data; `kind` selects the network."""
    if isinstance(values, NetSettings):
        return values
    kind = str(values.get("kind")) if isinstance(values, Mapping) else "None"
    return network_kind(kind).settings_type.model_validate(values)


AnyNetSettings = Annotated[SerializeAsAny[NetSettings], PlainValidator(read_net_settings)]
"""For fields of settings: the settings of any registered network."""


# --- settings classes ------------------------------------------------------------------------------------------------


@cache
def _described(name: str, maker: Maker) -> NetworkKind:
    parameters = inspect.signature(maker).parameters
    hints = _annotations(name, maker)
    given = getattr(maker, "settings_type", None) or hints.get("settings")
    takes_settings = "settings" in parameters
    if isinstance(given, type) and issubclass(given, BaseModel):
        settings_type = _with_kind(name, given)
    elif takes_settings:
        raise UserError(
            f"The parameter 'settings' of the network '{name}' needs a settings class as its annotation, or "
            "settings_type=... when it is registered."
        )
    else:
        settings_type = _from_keywords(name, parameters, hints)
    return NetworkKind(name, maker, settings_type, takes_settings, "image_size" in parameters)


def _annotations(name: str, maker: Maker) -> dict[str, Any]:
    function = maker.__init__ if isinstance(maker, type) else maker  # type: ignore[misc]
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as problem:
        raise UserError(f"The annotations of the network '{name}' cannot be read: {why(problem)}.") from problem


class PluginNetSettings(NetSettings):
    """Settings of a plug-in network. The class is created dynamically, so pickles refer to its `kind` instead."""

    def __reduce__(self) -> tuple[Any, ...]:
        return read_net_settings, (self.model_dump(),)


def _with_kind(name: str, given: type[BaseModel]) -> type[NetSettings]:
    """The class itself if its `kind` is `name`, else a subclass with that kind."""
    field = given.model_fields.get("kind")
    if issubclass(given, NetSettings) and field is not None and field.default == name:
        return given
    made = create_model(given.__name__, __base__=(given, PluginNetSettings), kind=_fixed(name))
    return cast(type[NetSettings], made)


def _fixed(name: str) -> Any:
    """The type and default of `kind`."""
    return Literal[name], name


def _from_keywords(
    name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> type[NetSettings]:
    """A setting for each keyword of a JSON-compatible type; others keep their defaults."""
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key == "image_size" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        usable = parameter.kind is not parameter.POSITIONAL_ONLY and not key.startswith("_") and key != "kind"
        annotation = hints.get(key, Any if required else _type_of(parameter.default))
        if usable and _is_plain(annotation, None if required else parameter.default):
            fields[key] = (annotation, ... if required else parameter.default)
        elif required:
            raise UserError(
                f"The network '{name}' cannot be configured by a file: its parameter '{key}' "
                + (
                    "has a type that is not JSON-compatible. Give it a default."
                    if usable
                    else "needs another name, or a default."
                )
            )
    return create_model(name, __base__=PluginNetSettings, kind=_fixed(name), **fields)


def _type_of(default: object) -> Any:
    """The inferred type of a parameter without annotation."""
    if default is None:
        return Any
    return int | float if type(default) is int else type(default)


def _is_plain(annotation: Any, default: object) -> bool:
    """Whether values of this type, and the default, are JSON-compatible."""
    try:
        TypeAdapter(annotation).json_schema()
        to_jsonable_python(default)
        return True
    except (PydanticUserError, PydanticInvalidForJsonSchema, PydanticSerializationError):
        return False


# --- number of features ----------------------------------------------------------------------------------------------


@torch.no_grad()
def _set_n_features(net: nn.Module, name: str, image_size: int) -> None:
    """Run the network on two black images, which also initialises lazy layers."""
    training = net.training
    try:
        with torch.random.fork_rng(devices=[]):
            features: object = net.eval()(torch.zeros(2, 3, image_size, image_size))
    except UserError:
        raise
    except Exception as problem:
        raise UserError(
            f"The network '{name}' does not work on images of 3 x {image_size} x {image_size}: {why(problem)}."
        ) from problem
    net.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.is_floating_point():
        found = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"The network '{name}' must return features [images, features]; for two images it returned {found}."
        )
    claimed = getattr(net, "n_features", features.shape[1])
    if claimed != features.shape[1]:
        raise UserError(f"The network '{name}' has n_features = {claimed}, but returns {features.shape[1]} features.")
    net.n_features = features.shape[1]  # type: ignore[assignment]
