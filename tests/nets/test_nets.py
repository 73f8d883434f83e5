"""Building networks from their settings."""

from __future__ import annotations

import pytest
import torch

from clom.nets import (
    AdapterNet,
    AdapterSettings,
    AlexNet,
    AlexNetSettings,
    Net,
    NetSettings,
    PooledConv,
    PooledConvSettings,
    ResNet18,
    ResNet18Settings,
    make_net,
)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (AlexNetSettings(channels=(4, 4, 4), hidden=6), AlexNet),
        (ResNet18Settings(width=4), ResNet18),
        (PooledConvSettings(channels=(4, 4, 4), hidden=6), PooledConv),
        (AdapterSettings(weights="random", width=0.05, hidden=6), AdapterNet),
    ],
)
def test_settings_select_the_network(settings: NetSettings, kind: type[Net]) -> None:
    net = make_net(settings, 32)
    assert type(net) is kind
    net.add_task()
    with torch.no_grad():
        assert net.eval()(torch.rand(2, 3, 32, 32), 0, {}).shape == (2, net.n_features)
