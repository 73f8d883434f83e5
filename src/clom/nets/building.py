"""Building gated networks from their settings.

Tested by tests/nets/test_nets.py.
"""

from __future__ import annotations

from clom.nets.convert import to_gated
from clom.nets.layers import Net
from clom.nets.net_settings import NetSettings
from clom.nets.networks.kinds import network_kind


def make_net(settings: NetSettings, image_size: int) -> Net:
    """The gated network that `settings` describes, for square images of that many pixels; a plain one is converted."""
    net = network_kind(settings.kind).build(settings, image_size)
    return net if isinstance(net, Net) else to_gated(net, (3, image_size, image_size))
