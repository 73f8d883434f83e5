"""The base class of network settings.

Tested by tests/nets/networks/test_registry.py.
"""

from __future__ import annotations

from clom.settings import Settings


class NetSettings(Settings):
    """The settings of a network. Each kind of network has its own subclass, with a fixed `kind`."""

    kind: str
