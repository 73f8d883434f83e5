"""A safe subset of YAML for settings: mappings, lists, strings and numbers, of limited size and depth.

Everything else is refused: aliases that expand to gigabytes, deep nesting, and tags for bytes, sets or dates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from clom.errors import UserError
from clom.files import read_text

MOST_BYTES = 200_000
"""A run's config.yaml has about two thousand."""
_MOST_VALUES = 20_000  # after expansion of aliases
_MOST_LEVELS = 30
_MOST_DIGITS = 40
_TOO_LARGE = f"it has more than {_MOST_VALUES} values or more than {_MOST_LEVELS} levels"


def read_yaml(path: Path) -> Any:
    try:
        return parse_yaml(read_text(path, MOST_BYTES))
    except ValueError as problem:
        raise UserError(f"{path} cannot be read as YAML: {problem}") from None


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; raises `ValueError` with a short reason if it is not valid."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} characters")
    try:
        _check_depth(text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_amount(node)
        value = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as problem:
        raise ValueError(" ".join(str(problem).split())[:300]) from None
    except Exception as problem:  # bugs of the library, on texts such as '!!bool maybe', and infinite recursion
        raise ValueError(f"it is not a valid setting ({type(problem).__name__})") from None
    _check_kinds(value)
    return value


def _check_depth(text: str) -> None:
    """Stop at the first mapping or list that is too deep: the library itself becomes ever slower with depth."""
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _MOST_LEVELS:
            raise ValueError(_TOO_LARGE)


def _check_amount(root: yaml.Node | None) -> None:
    """Count values with aliases expanded, before any object is constructed."""
    count, pending = 0, [(root, 0)]
    while pending:
        node, level = pending.pop()
        count += 1
        if count > _MOST_VALUES or level > _MOST_LEVELS:
            raise ValueError(_TOO_LARGE)
        if isinstance(node, yaml.SequenceNode):
            pending += [(inner, level + 1) for inner in node.value]
        elif isinstance(node, yaml.MappingNode):
            pending += [(inner, level + 1) for pair in node.value for inner in pair]


def _check_kinds(value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_kinds(name)
            _check_kinds(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_kinds(inner)
    elif isinstance(value, str):
        if not value.isprintable() and not value.replace("\n", "").isprintable():
            raise ValueError(f"it has a string with unprintable characters: {value[:50]!r}")
    elif isinstance(value, int):
        if abs(value) >= 10**_MOST_DIGITS:
            raise ValueError(f"it has a number with more than {_MOST_DIGITS} digits")
    elif not isinstance(value, float | None):
        raise ValueError(f"it has a {type(value).__name__}; settings are strings, numbers, lists and mappings")
