"""The safe subset of YAML: plain settings are read, everything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.errors import UserError
from clom.experiments.config import read_settings_file
from clom.experiments.plain_yaml import MOST_BYTES, parse_yaml, read_yaml

printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | printable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(plain)
def test_plain_values_are_read(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value, allow_unicode=True)) == value


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text("{}[]:,-&*!|>'\"?#%@ \nab01", max_size=60))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    why = "none"
    try:
        parse_yaml(text)
    except ValueError as problem:
        why = str(problem)
    assert 0 < len(why) <= 400


def bomb(more: str) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} " + more.replace("*", f"*a{n - 1}") for n in range(1, 40)]
    return "\n".join(lines)


REFUSED = {
    "groups within groups": bomb("{b: *, c: *}"),
    "lists within lists": bomb("[*, *]"),
    "merged groups": bomb("{<<: [*, *]}"),
    "a group in itself": "a: &a {b: *a}",
    "deep": "a: " + "[" * 20_000,
    "deep groups": "a: " + "{a: " * 60 + "1" + "}" * 60,
    "bytes": "a: !!binary ZGlnaXRz",
    "a set": "a: !!set {b, c}",
    "a date": "a: 2001-01-01",
    "no date": "a: 2001-99-99",
    "no truth": "a: !!bool maybe",
    "no number": "a: !!int one",
    "no time": "a: !!timestamp never",
    "code": "a: !!python/object/apply:os.system [true]",
    "digits": "a: " + "9" * 41,
    "digits beyond": "a: " + "9" * 5000,
    "zero byte": "a: b\0",
    "control": 'a: "\\a"',
    "surrogate": 'a: "\\ud800"',
    "long": "x" * (MOST_BYTES + 1),
    "two documents": "a: 1\n---\nb: 2",
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsafe_yaml_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_yaml(REFUSED[name])
    (tmp_path / "bad.yaml").write_text(REFUSED[name], encoding="utf-8")
    for read in (read_yaml, read_settings_file):
        with pytest.raises(UserError, match=r"bad\.yaml"):
            read(tmp_path / "bad.yaml")


def test_depth_is_limited() -> None:
    with pytest.raises(ValueError, match="30 levels"):
        parse_yaml("a: " + "[" * 40 + "1\n- never closed: reading on would end in another complaint")


def test_a_few_aliases_are_allowed() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
