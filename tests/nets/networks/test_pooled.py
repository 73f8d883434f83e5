"""The network of SupSup's MNIST experiments."""

from __future__ import annotations

import pytest
import torch

from clom.nets import make_net
from clom.nets.networks.pooled import PooledConv, PooledConvSettings

SMALL = PooledConvSettings(channels=(4, 5, 6), hidden=7, dropout=(0.0, 0.0))


def test_the_published_size() -> None:
    net = make_net(PooledConvSettings(), 28)
    assert isinstance(net, PooledConv)
    two_outputs = 2 * net.n_features
    assert sum(parameter.numel() for parameter in net.parameters()) + two_outputs == 576_768


@pytest.mark.parametrize("side", [1, 3, 8, 28])
def test_images_of_any_size(side: int) -> None:
    net = PooledConv(SMALL)
    features = net(torch.rand(2, 3, side, side), 0, {})
    assert features.shape == (2, 7)
    assert bool((features >= 0).all())


def test_a_closed_unit_contributes_nothing() -> None:
    net = PooledConv(SMALL)
    images = torch.rand(2, 3, 8, 8)
    gates = {"conv1": torch.ones(4), "conv2": torch.ones(5), "conv3": torch.ones(6), "fc": torch.ones(7)}
    gates["conv2"][2] = 0
    before = net(images, 0, gates)
    with torch.no_grad():
        net.get_parameter("convs.1.weight")[2] += 1
        net.get_parameter("convs.2.weight")[:, 2] += 1
    torch.testing.assert_close(net(images, 0, gates), before)
