"""Converting plain networks: the same function with open gates, protected old tasks, clear errors."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.compact import compact, open_features
from clom.nets.convert import to_gated
from clom.nets.convert.network import Dropout
from clom.nets.layers import GatedConv2d, GatedJoin, Net
from clom.nets.networks.resnet import ResNet18, ResNet18Settings
from clom.testing import check_network
from nets.plain_networks import NETWORKS, Residual

networks = pytest.mark.parametrize("name", NETWORKS)


def images_for(name: str, count: int = 3) -> Tensor:
    return torch.rand(count, 3, NETWORKS[name][1], NETWORKS[name][1])


def converted(name: str, n_tasks: int = 1) -> tuple[nn.Module, Net]:
    torch.manual_seed(0)
    kind, size = NETWORKS[name]
    plain = kind()
    for module in plain.modules():  # like a trained network
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(cast(Tensor, module.running_mean))
            nn.init.uniform_(cast(Tensor, module.running_var), 0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    net = to_gated(plain, (3, size, size))
    for _ in range(n_tasks):
        net.add_task()
    return plain.eval(), net.eval()


def some_gates(net: Net, seed: int) -> dict[str, Tensor]:
    randomness = torch.Generator().manual_seed(seed)
    return {group: (torch.rand(n, generator=randomness) < 0.6).float() for group, n in net.gate_sizes().items()}


@networks
def test_with_open_gates_it_equals_the_plain_network(name: str) -> None:
    plain, net = converted(name, n_tasks=2)
    images = images_for(name)
    wanted = plain(images)
    assert net.n_features == wanted.shape[1]
    ones = {group: torch.ones(size) for group, size in net.gate_sizes().items()}
    for task in range(2):
        for gates in ({}, ones):
            torch.testing.assert_close(net(images, task, gates), wanted, rtol=1e-5, atol=1e-5)


@networks
def test_with_open_gates_it_trains_like_the_plain_network(name: str) -> None:
    """Without dropout, whose random numbers are drawn in a different order."""
    plain, net = converted(name)
    for module in (*plain.modules(), *net.modules()):
        if isinstance(module, nn.Dropout | nn.Dropout2d | Dropout):
            module.p = 0.0
    images = images_for(name, 6)
    if name == "perceptron":
        plain.eval()
    torch.testing.assert_close(
        net.train()(images, 0, {}), plain.train(name != "perceptron")(images), rtol=1e-4, atol=1e-4
    )
    plain.eval(), net.eval()
    torch.testing.assert_close(net(images, 0, {}), plain(images), rtol=1e-4, atol=1e-4)


@networks
def test_it_passes_the_checks_of_gated_networks(name: str) -> None:
    kind, size = NETWORKS[name]
    check_network(lambda: to_gated(kind(), (3, size, size)), size)


@networks
def test_it_is_a_copy(name: str) -> None:
    plain, net = converted(name)
    before = plain(images_for(name, 2) * 0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert torch.equal(plain(images_for(name, 2) * 0), before)


@networks
def test_weights_of_closed_units_do_not_matter(name: str) -> None:
    """A task's features depend only on weights between its open units and on its own batch norm."""
    _, net = converted(name, n_tasks=2)
    images, gates = images_for(name), some_gates(net, 1)
    before = net(images, 0, gates)
    assert before.abs().sum() > 0
    closed_features = gates[net.feature_group or ""] == 0
    assert closed_features.any()
    assert not before[:, closed_features].any(), "a closed feature must be zero"
    with torch.no_grad():
        for layer in net.gated_layers():
            out_open = gates[layer.gate_out or ""] > 0
            in_open = torch.ones(layer.weight.shape[1], dtype=torch.bool)
            if layer.gate_in is not None:
                in_open = (gates[layer.gate_in] > 0).repeat_interleave(layer.spread)
            needed = (out_open[:, None] & in_open[None, :]).view(
                *layer.weight.shape[:2], *[1] * (layer.weight.ndim - 2)
            )
            layer.weight.copy_(torch.where(needed, layer.weight, torch.randn_like(layer.weight)))
            if layer.bias is not None:
                layer.bias.copy_(torch.where(out_open, layer.bias, torch.randn_like(layer.bias)))
        for parameter in net.task_parameters(1):
            parameter.normal_()
    net.train()(images, 1, some_gates(net, 2))  # changes the statistics of the other task
    assert torch.equal(net.eval()(images, 0, gates), before)


@networks
def test_every_parameter_belongs_to_a_gated_layer_or_one_task(name: str) -> None:
    _, net = converted(name, n_tasks=2)
    parts = [net.shared_parameters(), net.task_parameters(0), net.task_parameters(1)]
    ids = [id(parameter) for part in parts for parameter in part]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in net.parameters()}
    groups = set(net.gate_sizes())
    layers = [module for module in net.modules() if isinstance(module, GatedConv2d | nn.Linear | GatedJoin)]
    assert {layer.gate_out for layer in layers} == groups
    assert {layer.gate_in for layer in layers} - {None} <= groups


@networks
def test_the_compact_network_has_the_same_outputs(name: str) -> None:
    _, net = converted(name, n_tasks=2)
    images, gates = images_for(name), some_gates(net, 3)
    small = compact(net, 1, gates)
    wanted = net(images, 1, gates)[:, open_features(net, gates)]
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    torch.testing.assert_close(small(images, 0, {}), wanted, rtol=1e-4, atol=1e-5)


@networks
def test_gates_are_learned(name: str) -> None:
    _, net = converted(name)
    gates = {group: torch.full((size,), 0.5, requires_grad=True) for group, size in net.gate_sizes().items()}
    net.train()(images_for(name, 8), 0, gates).square().sum().backward()
    assert [group for group, gate in gates.items() if gate.grad is None or not gate.grad.any()] == []


def test_a_plain_resnet_gets_the_same_gates_as_the_built_in_one() -> None:
    ours, theirs = ResNet18(ResNet18Settings(width=8)), to_gated(Residual(), (3, 16, 16))
    assert list(theirs.gate_sizes().values()) == list(ours.gate_sizes().values())
    joins = [sum(isinstance(module, GatedJoin) for module in net.modules()) for net in (ours, theirs)]
    assert joins == [5, 5]


def test_conversion_does_not_advance_the_random_state() -> None:
    """Draws after the conversion are the same as after building the layers alone."""
    torch.manual_seed(3)
    one = to_gated(Residual(width=4), (3, 8, 8)).state_dict()
    torch.manual_seed(3)
    two = to_gated(Residual(width=4), (3, 8, 8)).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- unsupported -----------------------------------------------------------------------------------------------------


class Written(nn.Module):
    """A module with the given forward pass and a few layers."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.conv, self.other, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)
        self.norm = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.ones(6))
        self.written = forward

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.written(self, images)
        return result


def pooled(values: Tensor) -> Tensor:
    return values.mean((2, 3))


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "layer norm": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 6, 6]), nn.Flatten(), nn.Linear(144, 5)),
        r"the layer '1' \(LayerNorm\) normalises over all units",
    ),
    "groups": (
        nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        r"the layer '0' \(Conv2d\) has groups=3",
    ),
    "dilation": (
        nn.Sequential(nn.Conv2d(3, 6, 3, dilation=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        r"the layer '0' \(Conv2d\) must have a square kernel",
    ),
    "norm first": (
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        r"the layer '0' \(BatchNorm2d\) normalises something other than the output of one convolution",
    ),
    "norm of a linear layer": (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5)),
        r"the layer '2' \(BatchNorm1d\) normalises",
    ),
    "no statistics": (
        nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.Flatten(), nn.Linear(216, 5)
        ),
        r"the layer '1' \(BatchNorm2d\) has no running statistics",
    ),
    "sigmoid": (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Sigmoid()),
        r"the layer '2' \(Sigmoid\) does not map the zero of a closed unit to zero",
    ),
    "prelu": (nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.PReLU()), r"'2' \(PReLU\) has a parameter"),
    "maps as features": (
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten()),
        "each feature needs a gate: end with a linear layer",
    ),
    "images as features": (nn.Flatten(), "each feature needs a gate"),
    "concatenation": (
        Written(lambda net, images: net.last(pooled(torch.cat([net.conv(images), net.other(images)], 1)[:, :6]))),
        "the operation 'cat' concatenates units of several layers",
    ),
    "images added": (Written(lambda net, images: net.last(pooled(net.conv(images) + 1))), "the operation 'add'"),
    "a mean over channels": (
        Written(lambda net, images: net.last(pooled(net.conv(images) + images.mean(1, keepdim=True)))),
        "averages over images or units",
    ),
    "twice": (
        Written(lambda net, images: net.last(pooled(net.conv(images) + net.conv(images)))),
        r"the layer 'conv' \(Conv2d\) is used more than once",
    ),
    "a norm whose input others read": (
        Written(lambda net, images: net.last(pooled(net.norm(values := net.conv(images)) + values))),
        r"the layer 'norm' \(BatchNorm2d\) normalises something other",
    ),
    "a loose parameter": (
        Written(lambda net, images: net.last(pooled(net.conv(images)) * net.scale)),
        "the parameter 'scale' belongs to no gated layer",
    ),
    "a weight used by hand": (
        Written(lambda net, images: net.last(pooled(F.conv2d(images, net.conv.weight)))),
        r"the parameter 'conv.weight' belongs to no",
    ),
    "attention": (
        Written(lambda net, images: net.last(pooled(net.conv(images).softmax(1)))),
        "the operation 'softmax' is not an operation that keeps closed units zero",
    ),
    "a quotient": (Written(lambda net, images: net.last(pooled(1 / net.conv(images)))), "the operation 'truediv'"),
    "a product": (
        Written(lambda net, images: net.last(pooled(net.conv(images) * net.other(images)))),
        "the operation 'mul' is not an operation",
    ),
    "a branch on values": (
        Written(lambda net, images: net.last(pooled(net.conv(images))) if images.sum() > 0 else images),
        "torch.fx cannot trace it",
    ),
    "a linear layer on maps": (
        Written(lambda net, images: net.last(net.conv(images).permute(0, 2, 3, 1)).mean((1, 2))),
        "the operation 'permute'",
    ),
    "two results": (
        Written(lambda net, images: (net.last(pooled(net.conv(images))), images)),
        "must return one tensor",
    ),
    "values changed in place": (
        Written(lambda net, images: (values := net.conv(images), F.relu_(values), net.last(pooled(values)))[-1]),
        "modifies values in place",
    ),
    "another size": (
        nn.Sequential(nn.Flatten(), nn.Linear(100, 5)),
        r"does not work on images of shape \(3, 8, 8\) .*shapes cannot be multiplied",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_the_error_names_the_unsupported_operation(case: str) -> None:
    module, message = UNSUPPORTED[case]
    with pytest.raises(UserError, match=message) as caught:
        to_gated(module, (3, 8, 8))
    assert str(caught.value).startswith(f"{type(module).__name__} cannot be converted to a gated network: ")
    assert "clom.nets.layers" in str(caught.value)
