"""The one exception that means "the user can fix this": the command line prints its text and no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was asked for or given, with a text that says what, where and what to do."""


class DataError(UserError):
    """A data file is missing, unreadable or not what its name promises."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: what was not found, the closest match, and all that exists."""
    names = sorted(known)
    close = difflib.get_close_matches(shorten(name).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return UserError(f"There is no {kind} '{shorten(name)}'.{hint} Known: {', '.join(names)}.")


def shorten(text: str, most: int = 100) -> str:
    """What somebody gave, fit to be repeated in a sentence."""
    return text if len(text) <= most else f"{text[:most]}..."
