"""Settings: defaults of nested groups, former names, and rejection of unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import pytest
from pydantic import ValidationError

from clom.settings import Settings


class Inner(Settings):
    a: int = 1
    b: int = 2
    kind: Literal["x", "y"] = "x"


class One(Settings):
    kind: Literal["one"] = "one"
    n: int = 1
    m: int = 1


class Two(Settings):
    kind: Literal["two"] = "two"
    n: int = 2


class Middle(Settings):
    inner: Inner = Inner(a=10, b=20)


class Outer(Settings):
    middle: Middle = Middle(inner=Inner(a=100, b=200))
    either: One | Two = One(n=7, m=8)


def test_setting_part_of_a_group_keeps_the_outer_defaults_of_the_rest() -> None:
    outer = Outer.model_validate({"middle": {"inner": {"b": 5}}})
    assert outer.middle.inner == Inner(a=100, b=5)
    assert Middle.model_validate({"inner": {"kind": "y"}}).inner == Inner(a=10, b=20, kind="y")
    assert Middle.model_validate({}).inner == Inner(a=10, b=20)


def test_a_different_kind_of_group_starts_from_its_own_defaults() -> None:
    assert Outer.model_validate({"either": {"n": 3}}).either == One(n=3, m=8)
    assert Outer.model_validate({"either": {"kind": "two"}}).either == Two()
    assert Outer.model_validate({"either": {"kind": "one", "m": 4}}).either == One(n=7, m=4)


class Renamed(Settings):
    former_names: ClassVar[Mapping[str, str]] = {"old": "new"}
    new: int = 1
    other: int = 2


class WithRenamed(Settings):
    inner: Renamed = Renamed(other=20)


def test_former_names_are_accepted_at_every_depth() -> None:
    assert Renamed.model_validate({"old": 5}) == Renamed(new=5)
    assert WithRenamed.model_validate({"inner": {"old": 5}}).inner == Renamed(new=5, other=20)
    assert Renamed.model_validate({"new": 5, "old": 6}) == Renamed(new=6), "a former name overrides a recipe too"
    assert Renamed.model_validate({"old": 6, "new": 5}) == Renamed(new=5)
    assert Renamed.model_validate({"old": 5}).model_dump() == {"new": 5, "other": 2}


def test_misspelt_names_are_rejected_at_every_depth() -> None:
    wrong: object
    for wrong in ({"midle": {}}, {"middle": {"iner": {}}}, {"middle": {"inner": {"c": 1}}}, {"either": {"q": 1}}):
        with pytest.raises(ValidationError):
            Outer.model_validate(wrong)


def test_json_round_trip() -> None:
    outer = Outer.model_validate({"middle": {"inner": {"b": 5}}, "either": {"kind": "two", "n": 9}})
    assert Outer.model_validate(outer.model_dump(mode="json")) == outer
