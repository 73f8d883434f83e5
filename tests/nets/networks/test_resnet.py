"""ResNet-18: sizes, the forward pass, and per-task batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets import ResNet18, ResNet18Settings, make_net
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, GatedJoin
from clom.nets.networks.resnet import Block


def build(width: int = 4, affine: bool = True) -> ResNet18:
    torch.manual_seed(0)
    net = ResNet18(ResNet18Settings(width=width, affine=affine))
    net.add_task()
    return net.eval()


def images(n: int = 4, size: int = 8, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_sizes_of_the_papers_network() -> None:
    with torch.device("meta"):
        net = make_net(ResNet18Settings(), 32)
        net.add_task()
    # Convolution weights 11,159,232; per task 9,600 for normalisation and 3,904 gates.
    assert sum(p.numel() for p in net.shared_parameters()) == 11_159_232
    assert sum(p.numel() for p in net.task_parameters(0)) == 9_600
    assert sum(net.gate_sizes().values()) == 3_904
    assert net.n_features == 512
    shortcuts = [block.shortcut for block in net.modules() if isinstance(block, Block)]
    assert [isinstance(shortcut, GatedConv2d) for shortcut in shortcuts] == [False, False] + [True, False] * 3


def reference(net: ResNet18, pixels: Tensor, task: int, gates: Gates) -> Tensor:
    """A second implementation of ResNet-18, from the paper by He et al. and the rules for gates of Serra et al."""

    def conv_norm(values: Tensor, conv: nn.Module, stride: int, padding: int) -> Tensor:
        assert isinstance(conv, GatedConv2d)
        (norm,) = conv.norms_of(task)
        values = F.conv2d(values, conv.weight, stride=stride, padding=padding)
        if net.training:
            mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), correction=0)
        else:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            mean, variance = norm.running_mean, norm.running_var
        return F.batch_norm(values, mean, variance, norm.weight, norm.bias, eps=1e-5)

    def gate(values: Tensor, group: str) -> Tensor:
        return values * gates[group][None, :, None, None]

    values = gate(conv_norm(2 * pixels - 1, net.stem, 1, 1).relu(), "stem")
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        name, stride = f"stage{number // 2 + 1}.{number % 2}", 2 if number in (2, 4, 6) else 1
        inner = gate(conv_norm(values, block.conv1, stride, 1).relu(), f"{name}.1")
        outer = conv_norm(inner, block.conv2, 1, 1)
        shortcut = conv_norm(values, block.shortcut, 2, 0) if stride == 2 else values
        values = gate((outer + shortcut).relu(), f"{name}.2")
    return values.mean((2, 3))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_forward_equals_the_reference(training: bool, soft: bool) -> None:
    net = build()
    net.add_task()
    net.double()
    pixels = images().double()
    with torch.no_grad():
        net.train()(images(16, seed=2).double(), 1, {})  # so that task 1's statistics are not the initial ones
        for parameter in net.task_parameters(1):
            parameter.add_(0.1 * torch.rand_like(parameter))
        gates = {group: torch.rand(size).double() for group, size in net.gate_sizes().items()}
        if not soft:
            gates = {group: (gate > 0.3).double() for group, gate in gates.items()}
        net.train(training)
        expected = reference(net, pixels, 1, gates)
        torch.testing.assert_close(net(pixels, 1, gates), expected)
        assert not torch.allclose(net(pixels, 0, gates), expected, rtol=1e-2)


def test_grey_images_are_the_origin() -> None:
    net = build()
    with torch.no_grad():
        assert torch.equal(net(torch.full((2, 3, 8, 8), 0.5), 0, {}), torch.zeros(2, 32))
        assert bool((net(torch.full((2, 3, 8, 8), 0.6), 0, {}) != 0).any())


def test_norms_of_tasks_do_not_interact() -> None:
    net = build()
    net.add_task()
    with torch.no_grad():
        before = [net(images(), task, {}) for task in (0, 1)]
        net.train()(images(16, seed=2), 1, {})
        net.eval()
        assert torch.equal(net(images(), 0, {}), before[0])
        assert not torch.equal(net(images(), 1, {}), before[1])
        for parameter in net.task_parameters(1):
            parameter.add_(0.1)
        assert torch.equal(net(images(), 0, {}), before[0])


def test_adding_a_task_does_not_change_old_ones() -> None:
    net = build()
    with torch.no_grad():
        net.train()(images(16, seed=2), 0, {})
        before = net.eval()(images(), 0, {})
        for _ in range(3):
            net.add_task()
        assert torch.equal(net.eval()(images(), 0, {}), before)
    assert all(len(layer.norms) == 4 for layer in net.modules() if isinstance(layer, GatedConv2d))


def test_identity_join_passes_its_input_through() -> None:
    net = build()
    block = net.blocks[1]
    assert isinstance(block, Block)
    assert isinstance(block.shortcut, GatedJoin)
    assert (block.shortcut.gate_in, block.shortcut.gate_out) == ("stage1.0.2", "stage1.1.2")
    assert list(block.shortcut.parameters()) == []
    values = torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        block.conv2.weight.zero_()  # then only the shortcut is left
        assert torch.equal(block(values, 0, {}), values.relu())
        gate = torch.tensor([1.0, 0.0, 0.5, 1.0])
        assert torch.equal(block(values, 0, {"stage1.1.2": gate}), values.relu() * gate[None, :, None, None])


def test_a_shortcut_with_weights_lies_between_the_gates_of_its_block() -> None:
    block = build().blocks[2]
    assert isinstance(block, Block)
    assert isinstance(block.shortcut, GatedConv2d)
    assert (block.shortcut.gate_in, block.shortcut.gate_out) == ("stage1.1.2", "stage2.0.2")


def test_without_affine_a_task_has_no_parameters_here() -> None:
    assert build(affine=False).task_parameters(0) == []


@pytest.mark.parametrize("size", [8, 16, 20])
def test_any_image_size(size: int) -> None:
    with torch.no_grad():
        assert build()(images(size=size), 0, {}).shape == (4, 32)
