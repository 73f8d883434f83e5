"""Text from outside, such as names of tasks, classes and files: what is refused, and how it is shown.

A terminal obeys control characters, so an escape sequence in a name could change what a reader sees. Characters that
reverse the direction of writing can hide a part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clom.errors import UserError

LONGEST_NAME = 1000
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_EXCEPT_LAYOUT = re.compile(rf"(?![\n\t])[{_CONTROLS}]")


def printable(text: str) -> str:
    """Text for a terminal or a log: control characters, except line breaks and tabs, become visible escapes."""
    return _CONTROL_EXCEPT_LAYOUT.sub(_escaped, text)


def on_one_line(text: str) -> str:
    """The same without line breaks and tabs: for names, and for file names, which may contain them."""
    return _CONTROL.sub(_escaped, text)


def check_names(task: str, class_names: Iterable[str]) -> None:
    """Raise if the name of a task or of one of its classes cannot be shown, or if two classes have the same name."""
    known = set[str]()
    for kind, name in (("task", task), *(("class", name) for name in class_names)):
        shown = on_one_line(name[:100])
        if _CONTROL.search(name):
            raise UserError(f"The name of the {kind} '{shown}' contains control characters. Give it another name.")
        if len(name) > LONGEST_NAME:
            raise UserError(f"The name of the {kind} '{shown}...' is longer than {LONGEST_NAME} characters.")
        if kind == "class" and name in known:
            raise UserError(f"Two classes of task '{on_one_line(task)}' have the name '{shown}'.")
        if kind == "class":
            known.add(name)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
