"""What every network's settings have in common.

Tested by tests/nets/networks/test_registry.py.
"""

from __future__ import annotations

from clom.settings import Settings


class NetSettings(Settings):
    """Which network, and how it is built. Each kind of network has a class of its own, with `kind` fixed."""

    kind: str
