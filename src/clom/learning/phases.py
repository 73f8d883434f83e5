"""Which part of the time of learning a task each of its phases takes, about: for displays and estimates."""

from __future__ import annotations

_SHARES = {"views": (0.0, 0.85), "adapters": (0.85, 0.99), "features": (0.0, 0.92), "head": (0.92, 1.0)}


def share_of(phase: str) -> tuple[float, float]:
    """Where the phase begins and ends, as fractions of the whole; the only phase of a method takes all of it."""
    return _SHARES.get(phase, (0.0, 1.0))
