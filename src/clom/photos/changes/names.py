"""Names of classes and tasks that people type.

Tested by tests/photos/changes/test_rename.py.
"""

from __future__ import annotations

import unicodedata

from clom.errors import UserError

_LONGEST = 80


def clean_name(text: str, kind: str) -> str:
    """A normalised single-line name."""
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not name:
        raise UserError(f"A {kind} needs a name.")
    if len(name) > _LONGEST:
        raise UserError(f"The name of a {kind} has at most {_LONGEST} characters, this one has {len(name)}.")
    if not name.isprintable():
        raise UserError(f"The name of a {kind} has characters that cannot be shown.")
    return name
