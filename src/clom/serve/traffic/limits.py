"""The limits of a request.

Tested by tests/serve/traffic/test_bodies.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a single request, and of all that are being received."""

    ask_bytes: int = 64_000_000
    ask_pictures: int = 64
    teach_bytes: int = 1_000_000_000
    teach_pictures: int = 2_000
    teach_classes: int = 100
    picture_bytes: int = 40_000_000
    decoded_bytes: int = 1_000_000_000
    """Decoded images of one training job."""
    bytes_at_once: int = 1_500_000_000
    """Total of all requests being read; they wait on the disk."""
    bytes_per_second: int = 25_000_000
    """At which all bodies beyond their first `quick_bytes` are received together."""
    quick_bytes: int = 2_000_000
    stall_seconds: float = 15.0
    """Without a byte of a body that is not complete."""
    least_bytes_per_second: int = 1_000
    """On average over the time that the server waits for a body, from `stall_seconds` on."""
    silent_seconds: float = 1.0
    """After which a body counts as stalled, if all together are too large."""
    streams: int = 50
    """Clients that follow a training job."""
