"""What adding photos to known classes changed.

Tested by tests/photos/changes/test_add.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clom.errors import UserError


@dataclass(frozen=True)
class Extension:
    """What `Method.extend` changed."""

    photos: Mapping[str, int]
    """Class -> the number of photos added to it."""
    tasks: tuple[int, ...]
    """The tasks of these classes: the only ones whose own numbers changed."""
    shared: str
    """A sentence about what was refitted that all tasks share; empty if nothing was."""


def cannot_extend(method: str) -> UserError:
    """The error of methods that train weights."""
    return UserError(
        f"{method} cannot add photos to a class it knows: its weights were trained on all photos of a task together. "
        "Forget the task and learn it again with the old and the new photos."
    )
