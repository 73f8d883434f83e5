"""A compact network has the same outputs as the masked one, for any gates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clom.nets import AlexNetSettings, Net, NetSettings, ResNet18Settings, make_net
from clom.nets.compact import compact, open_features
from clom.nets.layers import GatedConv2d

NETS: dict[str, NetSettings] = {
    "alexnet": AlexNetSettings(channels=(5, 6, 7), hidden=9, kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 1, 1)),
    "resnet": ResNet18Settings(width=3),
    "resnet, not affine": ResNet18Settings(width=3, affine=False),
}


def trained_like(settings: NetSettings, seed: int) -> Net:
    """A network whose batch norms are not the identity."""
    torch.manual_seed(seed)
    net = make_net(settings, 8)
    net.add_task()
    net.add_task()
    for layer in net.gated_layers():
        for norm in layer.norms_of(1):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            if norm.weight is not None:
                torch.nn.init.normal_(norm.weight)
                torch.nn.init.normal_(norm.bias)
    return net.eval()


def random_gates(net: Net, densities: list[float], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        group: (torch.rand(size, generator=generator) < densities[number % len(densities)]).float()
        for number, (group, size) in enumerate(net.gate_sizes().items())
    }


@pytest.mark.parametrize("kind", NETS)
@settings(max_examples=25, deadline=None)
@given(densities=st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_equals_the_masked_network(kind: str, densities: list[float], seed: int) -> None:
    net = trained_like(NETS[kind], seed)
    gates = random_gates(net, densities, seed)
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    kept = open_features(net, gates)
    with torch.no_grad():
        masked = net(images, 1, gates)
        small = compact(net, 1, gates)
        torch.testing.assert_close(small(images, 0, {}), masked[:, kept], atol=1e-4, rtol=1e-4)
        closed = torch.ones(net.n_features, dtype=torch.bool)
        closed[kept] = False
        assert masked[:, closed].abs().max().item() == 0 if closed.any() else True


def test_it_is_small_and_does_not_modify_the_network() -> None:
    net = trained_like(NETS["resnet"], 0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gates = random_gates(net, [0.5], 3)
    small = compact(net, 1, gates)
    kept = {group: int(gate.sum()) for group, gate in gates.items()}
    for layer in small.gated_layers():
        assert isinstance(layer, GatedConv2d)
        assert layer.n_units == max(1, kept[layer.gate_out])
        assert not layer.normalised
    assert sum(p.numel() for p in small.parameters()) < 0.6 * sum(p.numel() for p in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert small.n_features == len(open_features(net, gates))
