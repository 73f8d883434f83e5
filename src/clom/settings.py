"""Base of everything that can be set: immutable, checked, and closed against misspelt names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clom.errors import UserError

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class Settings(BaseModel):
    """A group of settings; an unknown name or a wrong type is refused when it is built.

    Whoever sets part of an inner group changes that part alone: the rest stays as this group's default has it, not as
    the inner group would have it elsewhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _fill_inner_groups(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {name: _filled(defaults.get(name), value) for name, value in values.items()}


def _filled(default: Any, given: Any) -> Any:
    """`given` on top of `default`, if it is the same kind of group."""
    if not isinstance(default, Settings) or not isinstance(given, dict):
        return given
    usual = {name: getattr(default, name) for name in type(default).model_fields}
    other_kind = type(default).model_fields.get("kind") and _kind_is_fixed(default) and given.get("kind", usual["kind"])
    if not usual.keys() >= given.keys() or (other_kind and other_kind != usual["kind"]):
        return given
    return usual | {name: _filled(usual[name], value) for name, value in given.items()}


def _kind_is_fixed(group: Settings) -> bool:
    """Whether `kind` names the type of the group (one of several that are allowed), and not a choice within it."""
    return len(getattr(type(group).model_fields["kind"].annotation, "__args__", ())) == 1


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, group by group; neither is changed."""
    result = {key: merged(value, {}) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old if isinstance(old, dict) else {}, value) if isinstance(value, Mapping) else value
    return result


def set_dotted(target: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError(f"'{name}' cannot be set: '{part}' is a value, not a group of settings.")
        target = inner
    target[last] = value
