"""Base class of all settings: immutable and validated, with unknown names rejected."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clom.errors import UserError, shorten

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]

_MAX_FINDINGS = 10


class Settings(BaseModel):
    """A group of settings; unknown names and wrong types are rejected.

    Setting part of a nested group keeps this group's defaults for the rest, which may differ from the nested class's
    own defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    former_names: ClassVar[Mapping[str, str]] = {}
    """Former name of a setting -> its current name. Both are accepted; if both are given, the later one counts."""

    @model_validator(mode="before")
    @classmethod
    def _fill_inner_groups(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {name: _filled(defaults.get(name), value) for name, value in cls._renamed(values).items()}

    @classmethod
    def _renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {cls.former_names.get(name, name): value for name, value in values.items()}


def _filled(default: Any, given: Any) -> Any:
    """`given` merged into `default`, if both are the same kind of group."""
    if not isinstance(default, Settings) or not isinstance(given, dict):
        return given
    given = default._renamed(given)
    values = {name: getattr(default, name) for name in type(default).model_fields}
    kind = type(default).model_fields.get("kind") and _kind_is_fixed(default) and given.get("kind", values["kind"])
    if not values.keys() >= given.keys() or (kind and kind != values["kind"]):
        return given
    return values | {name: _filled(values[name], value) for name, value in given.items()}


def _kind_is_fixed(group: Settings) -> bool:
    """Whether `kind` identifies the type of the group in a union of types, rather than being an ordinary setting."""
    return len(getattr(type(group).model_fields["kind"].annotation, "__args__", ())) == 1


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new mapping with `over` merged recursively into `base`."""
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


def explain(problem: ValidationError, settings: type[Settings], prefix: str = "") -> UserError:
    """Pydantic's errors, one sentence each, with a suggestion for a misspelt name."""
    findings = [(_Place.of(settings, finding["loc"]), finding) for finding in problem.errors()]
    # For a union of groups pydantic reports errors for every member; show those of the closest match only.
    count = Counter(place.choice for place, _ in findings)
    best: dict[str, tuple[str, str]] = {}
    for choice in sorted(filter(None, count), key=lambda choice: count[choice]):
        best.setdefault(choice[0], choice)
    lines = []
    for place, finding in findings:
        if place.choice and best[place.choice[0]] != place.choice:
            continue
        if finding["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(finding["loc"][-1]), place.known, n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(place.known)}."
            lines.append(f"There is no setting '{prefix}{shorten(place.name)}'.{hint}")
        else:
            reason = f"{finding['msg'].lower()}, got {shorten(repr(finding['input']))}"
            lines.append(f"Setting '{prefix}{shorten(place.name)}': {reason}.")
    more = [f"... and {len(lines) - _MAX_FINDINGS} more."] if len(lines) > _MAX_FINDINGS else []
    return UserError("\n".join([*lines[:_MAX_FINDINGS], *more]))


@dataclass(frozen=True)
class _Place:
    """The location of an error: its dotted name, the names valid there, and the union member that pydantic tried."""

    name: str
    known: list[str]
    choice: tuple[str, str] | None

    @staticmethod
    def of(settings: type[Settings], path: tuple[int | str, ...]) -> _Place:
        parts: list[str] = []
        choice: tuple[str, str] | None = None
        current: Any = settings
        known: list[str] = []
        for part in path:
            chosen = [kind for kind in get_args(current) if getattr(kind, "__name__", None) == part]
            if chosen:
                choice, current = (".".join(parts), str(part)), chosen[0]
                continue
            if get_origin(current) is dict:
                parts.append(str(part))
                current, known = get_args(current)[1], []
                continue
            fields = getattr(current, "model_fields", {})
            known = sorted(fields)
            parts.append(str(part))
            current = fields[part].annotation if part in fields else None
        return _Place(".".join(parts), known, choice)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
