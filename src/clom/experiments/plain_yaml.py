"""YAML as people write settings: names, texts, numbers and lists of them, in an amount that a person could write.

YAML can do more, and none of it is wanted here: a few lines that name one another unfold to gigabytes, a value can be
nested deeper than any program follows, and tags ask for bytes, sets and dates. All of that is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from clom.errors import UserError
from clom.files import read_text

MOST_BYTES = 200_000
"""A run's own config.yaml has two thousand."""
_MOST_VALUES = 20_000  # with every repeated one counted again
_MOST_LEVELS = 30
_MOST_DIGITS = 40
_TOO_MUCH = f"it holds more than {_MOST_VALUES} values, or more than {_MOST_LEVELS} groups in a group"


def read_yaml(path: Path) -> Any:
    try:
        return parse_yaml(read_text(path, MOST_BYTES))
    except ValueError as problem:
        raise UserError(f"{path} cannot be read as YAML: {problem}") from None


def parse_yaml(text: str) -> Any:
    """The value that `text` stands for; a `ValueError` says in a few words why it does not stand for any."""
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
    except Exception as problem:  # the library's own slips, on texts such as '!!bool maybe', and endless recursion
        raise ValueError(f"it is not what any setting looks like ({type(problem).__name__})") from None
    _check_kinds(value)
    return value


def _check_depth(text: str) -> None:
    """Stops at the first group too deep: the library itself would follow to the end, ever more slowly."""
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _MOST_LEVELS:
            raise ValueError(_TOO_MUCH)


def _check_amount(root: yaml.Node | None) -> None:
    """Counts values as they would be written out, before anything is built of them."""
    count, waiting = 0, [(root, 0)]
    while waiting:
        node, level = waiting.pop()
        count += 1
        if count > _MOST_VALUES or level > _MOST_LEVELS:
            raise ValueError(_TOO_MUCH)
        if isinstance(node, yaml.SequenceNode):
            waiting += [(inner, level + 1) for inner in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(inner, level + 1) for pair in node.value for inner in pair]


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
            raise ValueError(f"it holds a text with characters that cannot be shown: {value[:50]!r}")
    elif isinstance(value, int):
        if abs(value) >= 10**_MOST_DIGITS:
            raise ValueError(f"it holds a number of more than {_MOST_DIGITS} digits")
    elif not isinstance(value, float | None):
        raise ValueError(f"it holds a {type(value).__name__}; settings are texts, numbers, lists and groups")
