"""Growth of networks: what was there stays, and the network as it was computes the same bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from clom.nets import AdapterSettings, AlexNetSettings, NetSettings, PooledConvSettings, ResNet18Settings, make_net
from clom.nets.compact import compact
from clom.nets.convert import to_gated
from clom.nets.gates import Gates
from clom.nets.growth import evened, narrowed, resize, set_n_features
from clom.nets.layers import GatedConv2d, GatedLinear, Net
from clom.nets.plain import set_layout
from nets.plain_networks import Residual

SETTINGS: dict[str, NetSettings] = {
    "alexnet": AlexNetSettings(channels=(4, 6, 8), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=12),
    "resnet18": ResNet18Settings(width=6),
    "adapters": AdapterSettings(weights="random", width=0.05, hidden=12),
    "pooled-conv": PooledConvSettings(channels=(4, 6, 8), hidden=12),
}


def small_net(kind: str) -> Net:
    torch.manual_seed(0)
    net = to_gated(Residual(), (3, 16, 16)) if kind == "converted" else make_net(SETTINGS[kind], 16)
    net.add_task()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.uniform_(module.running_mean, -0.1, 0.1)  # type: ignore[arg-type]
    for name, parameter in net.named_parameters():
        if ".scales." in name:
            nn.init.uniform_(parameter)
    set_layout(net)
    return net.eval()


def grow(net: Net, sizes: dict[str, int], seed: int = 1) -> None:
    randomness = torch.Generator().manual_seed(seed)
    for layer in net.gated_layers():
        resize(layer, sizes, randomness)
    set_n_features(net, sizes)


def random_gates(net: Net) -> Gates:
    return {group: (torch.rand(size) < 0.7).float() for group, size in net.gate_sizes().items()}


@torch.no_grad()
@pytest.mark.parametrize("kind", [*SETTINGS, "converted"])
def test_a_grown_network_contains_the_old_one_to_the_bit(kind: str) -> None:
    net = small_net(kind)
    gates, before, images = random_gates(net), net.gate_sizes(), torch.rand(3, 3, 16, 16)
    features, state = net(images, 0, gates), copy.deepcopy(net.state_dict())
    small = compact(net, 0, gates)(images, 0, {})
    assert features.std().item() > 0
    more = evened(net, {group: size + 5 + number % 3 for number, (group, size) in enumerate(before.items())})
    grow(net, more)
    assert net.gate_sizes() == more
    as_it_was = narrowed(net, before)
    assert torch.equal(as_it_was(images, 0, gates), features)
    assert torch.equal(compact(as_it_was, 0, gates)(images, 0, {}), small)
    assert as_it_was.n_features == features.shape[1]
    assert all(torch.equal(as_it_was.state_dict()[name], value) for name, value in state.items())
    assert net.gate_sizes() == more, "the copy shares nothing that it changes"
    # A new task uses all units.
    net.add_task()
    wide = net.eval()(images, 1, {})
    assert wide.shape == (3, net.n_features)
    assert narrowed(net, more) is net
    assert net.n_features == (features.shape[1] if net.feature_group is None else more[net.feature_group])


def test_groups_that_a_shortcut_adds_grow_together() -> None:
    net = small_net("resnet18")
    sizes = net.gate_sizes()
    wanted = sizes | {"stage1.1.2": 9, "stage2.0.1": 20}
    # The stem and the outputs of both blocks of stage 1 are added unit by unit; an inner layer is free.
    assert evened(net, wanted) == wanted | {"stem": 9, "stage1.0.2": 9}
    assert evened(net, sizes) == sizes


def test_new_weights_are_drawn_like_those_of_a_new_layer() -> None:
    layer = GatedConv2d(30, 20, 3, gate_in="a", gate_out="b")
    old, bias = layer.weight.detach().clone(), layer.bias.detach().clone()  # type: ignore[union-attr]
    twin = copy.deepcopy(layer)
    resize(layer, {"a": 50, "b": 200}, torch.Generator().manual_seed(3))
    resize(twin, {"a": 50, "b": 200}, torch.Generator().manual_seed(3))
    assert torch.equal(layer.weight, twin.weight)
    assert torch.equal(layer.weight[:20, :30], old)
    assert torch.equal(layer.bias[:20], bias)  # type: ignore[index]
    assert (layer.in_channels, layer.out_channels, layer.n_units) == (50, 200, 200)
    bound = (9 * 50) ** -0.5
    for new in (layer.weight[20:], layer.weight[:20, 30:], layer.bias[20:]):  # type: ignore[index]
        assert new.abs().max().item() <= bound
        assert new.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    resize(layer, {"a": 30, "b": 20})
    assert torch.equal(layer.weight, old)


def test_every_input_of_a_flattened_map_gets_weights() -> None:
    layer = GatedLinear(2 * 4, 3, gate_in="map", gate_out="out", spread=4)
    old: Tensor = layer.weight.detach().clone()
    resize(layer, {"map": 3, "out": 3}, torch.Generator())
    assert layer.weight.shape == (3, 12)
    assert torch.equal(layer.weight[:, :8], old)
