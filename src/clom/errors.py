"""Errors that the user can fix: the command line prints their text without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input; the message says what is wrong, where, and what to do."""


class DataError(UserError):
    """A data file is missing, unreadable or not in the expected format."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name: what was not found, the closest match, and all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(shorten(name).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return UserError(f"There is no {kind} '{shorten(name)}'.{hint} Known: {', '.join(names)}.")


def shorten(text: str, limit: int = 100) -> str:
    """User input, truncated for use in a message."""
    return text if len(text) <= limit else f"{text[:limit]}..."
