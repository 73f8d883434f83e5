"""The gate graph: layers name their gates, and weights of closed units do not matter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets import AlexNetSettings, Net, NetSettings, ResNet18Settings, make_net
from clom.nets.layers import GatedConv2d, GatedJoin, GatedLinear, max_pool

TINY = AlexNetSettings(
    channels=(4, 5, 6), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 1, 1), hidden=7, dropout=(0.0, 0.0)
)
NETS: list[NetSettings] = [TINY, ResNet18Settings(width=4)]
nets = pytest.mark.parametrize("settings", NETS, ids=lambda settings: settings.kind)


def build(settings: NetSettings) -> Net:
    torch.manual_seed(0)
    net = make_net(settings, 8)
    net.add_task()
    with torch.no_grad():
        for layer in net.gated_layers():
            layer.weight.abs_().mul_(0.3)  # no dead units, so that every weight matters
            for norm in layer.norms_of(0):
                norm.bias.fill_(0.5)
    return net.eval()


def images(n: int = 8) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@nets
def test_every_gate_in_is_another_layers_gate_out(settings: NetSettings) -> None:
    net = build(settings)
    layers = list(net.gated_layers())
    joins = [module for module in net.modules() if isinstance(module, GatedJoin)]
    sizes = net.gate_sizes()
    known: list[str | None] = [layer.gate_out for layer in layers]
    for layer in layers:
        assert layer.gate_in is None or layer.gate_in in known
    for join in joins:
        assert sizes[join.gate_in] == sizes[join.gate_out]
    assert [layer.gate_in for layer in layers].count(None) == 1, "only the first layer reads ungated values"
    assert net.feature_group in sizes
    assert sizes[net.feature_group] == net.n_features
    assert "" not in sizes


@nets
def test_gate_sizes_match_the_weights(settings: NetSettings) -> None:
    net = build(settings)
    sizes = net.gate_sizes()
    for layer in net.gated_layers():
        assert layer.gate_out is not None
        assert sizes[layer.gate_out] == layer.weight.shape[0]
        inputs = 3 if layer.gate_in is None else sizes[layer.gate_in] * layer.spread
        assert layer.weight.shape[1] == inputs


def test_gate_sizes_are_in_forward_order() -> None:
    assert list(build(TINY).gate_sizes().items()) == [("conv1", 4), ("conv2", 5), ("conv3", 6), ("fc", 7)]
    sizes = build(ResNet18Settings(width=4)).gate_sizes()
    assert list(sizes)[:4] == ["stem", "stage1.0.1", "stage1.0.2", "stage1.1.1"]
    assert list(sizes)[-1] == "stage4.1.2"
    assert list(sizes.values()) == [4] + [4] * 4 + [8] * 4 + [16] * 4 + [32] * 4


@nets
def test_shared_and_task_parameters_are_disjoint_and_complete(settings: NetSettings) -> None:
    net = build(settings)
    net.add_task()
    parts = [net.shared_parameters(), net.task_parameters(0), net.task_parameters(1)]
    found = [id(parameter) for part in parts for parameter in part]
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in net.parameters()}


@nets
def test_weights_of_closed_units_do_not_matter(settings: NetSettings) -> None:
    """Protection relies on this: rows of closed output units and columns of closed input units are irrelevant."""
    net = build(settings)
    opened = {group: torch.ones(size) for group, size in net.gate_sizes().items()}
    with torch.no_grad():
        for number, layer in enumerate(net.gated_layers()):
            assert layer.gate_out is not None
            rows: list[tuple[str, slice | int, slice | int]] = [(layer.gate_out, 1, slice(None))]
            if layer.gate_in is not None:
                rows.append((layer.gate_in, slice(None), slice(layer.spread, 2 * layer.spread)))
            for group, row, column in rows:
                gates = {**opened, group: opened[group].clone()}
                gates[group][1] = 0
                other = copy.deepcopy(net)
                twin = list(other.gated_layers())[number]
                twin.weight[row, column] += 1.0
                if isinstance(row, int) and twin.bias is not None:
                    twin.bias[row] += 1.0
                assert torch.equal(net(images(), 0, gates), other(images(), 0, gates)), (number, group)
                assert not torch.equal(net(images(), 0, opened), other(images(), 0, opened)), (number, group)


@nets
def test_a_closed_feature_is_zero(settings: NetSettings) -> None:
    net = build(settings)
    gate = torch.ones(net.n_features)
    gate[2] = 0
    with torch.no_grad():
        features = net(images(), 0, {net.feature_group: gate})
    assert features.shape == (8, net.n_features)
    assert torch.equal(features[:, 2], torch.zeros(8))
    assert bool((features != 0).any())


def test_convolution_with_per_task_norm() -> None:
    conv = GatedConv2d(3, 4, 1, gate_in=None, gate_out="a", norm=True)
    conv.add_task()
    conv.add_task()
    (first,), (second,) = conv.norms_of(0), conv.norms_of(1)
    nn.init.constant_(first.weight, 2.0)
    nn.init.constant_(second.bias, 5.0)
    conv.eval()
    values = torch.randn(2, 3, 5, 5)
    gate = torch.tensor([1.0, 0.0, 0.5, 0.25])
    with torch.no_grad():
        plain = F.conv2d(values, conv.weight, conv.bias)
        expected = [2 * plain / (1 + 1e-5) ** 0.5, plain / (1 + 1e-5) ** 0.5 + 5]
        for task in range(2):
            torch.testing.assert_close(conv(values, task, {}), expected[task])
            gated = conv(values, task, {"a": gate, "other": torch.zeros(4)})
            torch.testing.assert_close(gated, expected[task] * gate[None, :, None, None])
            assert torch.equal(gated[:, 1], torch.zeros(2, 5, 5)), "the output of a closed unit must be exactly zero"


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_gated_norm_has_the_statistics_of_an_ungated_one(affine: bool, momentum: float | None) -> None:
    torch.manual_seed(0)
    conv = GatedConv2d(3, 4, 1, gate_in=None, gate_out="a", norm=True, affine=affine)
    conv.add_task()
    reference = nn.BatchNorm2d(4, momentum=momentum, affine=affine)
    (norm,) = conv.norms_of(0)
    norm.momentum = momentum
    gate = torch.tensor([1.0, 0.0, 0.5, 0.25])
    with torch.no_grad():
        for _ in range(3):
            values = torch.randn(2, 3, 5, 5)
            expected = reference(F.conv2d(values, conv.weight, conv.bias)) * gate[None, :, None, None]
            torch.testing.assert_close(conv(values, 0, {"a": gate}), expected)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value)


def test_gates_of_layers_without_norm() -> None:
    gate = torch.tensor([1.0, 0.0, 0.5, 0.25])
    conv = GatedConv2d(3, 4, 3, gate_in=None, gate_out="a")
    linear = GatedLinear(6, 4, gate_in=None, gate_out="a")
    maps, vectors = torch.randn(2, 3, 5, 5), torch.randn(2, 6)
    with torch.no_grad():
        plain = F.conv2d(maps, conv.weight, conv.bias)
        torch.testing.assert_close(conv(maps, 0, {}), plain)
        torch.testing.assert_close(conv(maps, 0, {"a": gate}), plain * gate[None, :, None, None])
        straight = vectors @ linear.weight.T + linear.bias
        torch.testing.assert_close(linear(vectors, {}), straight)
        torch.testing.assert_close(linear(vectors, {"a": gate}), straight * gate)
        assert torch.equal(linear(vectors, {"a": gate})[:, 1], torch.zeros(2))


@pytest.mark.parametrize("channels", [2, 4, 8, 16])
def test_a_strided_convolution_of_few_channels(channels: int) -> None:
    # The backward pass of torch 2.13 for this layer corrupts memory below 8 channels: see GatedConv2d.
    torch.manual_seed(0)
    conv = GatedConv2d(channels, 8, 1, gate_in=None, gate_out="a", stride=2, bias=False)
    values = torch.randn(3, channels, 7, 7, requires_grad=True)
    last = values.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = torch.einsum("oi,nihw->nohw", conv.weight[:, :, 0, 0], values[:, :, ::2, ::2])
    found = conv(last, 0, {})
    torch.testing.assert_close(found, expected)
    found.pow(2).sum().backward()
    (expected_grad,) = torch.autograd.grad(expected.pow(2).sum(), values)
    torch.testing.assert_close(last.grad, expected_grad)


def test_layers_without_norm_have_none() -> None:
    conv = GatedConv2d(3, 4, 1, gate_in=None, gate_out="a")
    conv.add_task()
    linear = GatedLinear(8, 2, gate_in="a", gate_out="b", spread=2)
    assert conv.norms_of(0) == []
    assert linear.norms_of(0) == []
    assert (conv.n_units, linear.n_units, linear.spread) == (4, 2, 2)


def test_norm_without_scale_and_shift() -> None:
    conv = GatedConv2d(3, 4, 1, gate_in=None, gate_out="a", norm=True, affine=False)
    conv.add_task()
    assert len(conv.norms_of(0)) == 1
    assert list(conv.norms_of(0)[0].parameters()) == []


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_2x2_pixels_is_trained_as_a_dense_product(bias: bool) -> None:
    torch.manual_seed(3)
    layer = GatedConv2d(3, 5, 3, padding=1, gate_in=None, gate_out="a", bias=bias).double()
    values = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    wanted = F.conv2d(values, layer.weight, layer.bias, padding=1)
    direction = torch.randn_like(wanted)
    leaves = [values, *layer.parameters()]
    wanted_gradients = torch.autograd.grad(wanted, leaves, direction)

    outputs = layer(values, 0, {})

    assert "Convolution" not in outputs.grad_fn.name(), "the fast path is not used"
    torch.testing.assert_close(outputs, wanted)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    for gradient, expected in zip(torch.autograd.grad(outputs, leaves, direction), wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_other_convolutions_of_2x2_pixels_are_unchanged() -> None:
    torch.manual_seed(3)
    values = torch.randn(4, 3, 2, 2)
    for kernel, stride, padding in [(3, 2, 1), (1, 1, 0), (2, 1, 0)]:
        layer = GatedConv2d(3, 5, kernel, stride=stride, padding=padding, gate_in=None, gate_out="a", bias=False)
        wanted = F.conv2d(values, layer.weight, stride=stride, padding=padding)
        torch.testing.assert_close(layer(values, 0, {}), wanted)


@pytest.mark.parametrize("side", [2, 5, 8])
@pytest.mark.parametrize("size", [2, 3])
def test_pooling_without_a_gradient_is_the_same(side: int, size: int) -> None:
    if side < size:
        return
    values = torch.randn(3, 4, side, side, generator=torch.Generator().manual_seed(0))
    values[0, 0, 0, 0] = torch.nan
    expected = F.max_pool2d(values, size)
    torch.testing.assert_close(max_pool(values, size), expected, rtol=0, atol=0, equal_nan=True)
    trained = values.clone().requires_grad_()
    torch.testing.assert_close(max_pool(trained, size), expected, rtol=0, atol=0, equal_nan=True)
    assert max_pool(trained, size).grad_fn is not None


@pytest.mark.parametrize("norm", [False, True])
def test_a_convolution_adds_and_rectifies_its_outputs(norm: bool) -> None:
    torch.manual_seed(0)
    layer = GatedConv2d(3, 4, 3, gate_in=None, gate_out="a", padding=1, norm=norm)
    layer.add_task()
    layer.eval()
    values, added = torch.randn(2, 3, 5, 5), torch.randn(2, 4, 5, 5)
    gates = {"a": torch.tensor([1.0, 0.0, 1.0, 0.5])}
    plain = layer(values, 0, gates)
    assert torch.equal(layer(values, 0, gates, added=added), plain + added)
    assert torch.equal(layer(values, 0, gates, relu=True), F.relu(plain))
    assert torch.equal(layer(values, 0, gates, added=added, relu=True), F.relu(plain + added))
