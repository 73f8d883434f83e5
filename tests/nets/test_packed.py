"""A packed network is the compact one: the same bits for any number of images, and the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings, make_net
from clom.nets.compact import compact
from clom.nets.layers import GatedConv2d, Net
from clom.nets.packed import PackedConv2d, packed

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
NETS: dict[str, NetSettings] = {
    "alexnet": AlexNetSettings(channels=(5, 6, 7), hidden=9, kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1)),
    "resnet": ResNet18Settings(width=12),
    "resnet without a final ReLU": ResNet18Settings(width=12, final_relu=False),
}


def compacted(settings: NetSettings) -> Net:
    torch.manual_seed(0)
    net = make_net(settings, 8)
    net.add_task()
    net.eval().requires_grad_(False)
    gates = {group: (torch.rand(size) < 0.6).float() for group, size in net.gate_sizes().items()}
    return compact(net, 0, gates)


@pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")
@pytest.mark.parametrize("kind", NETS)
def test_the_same_bits_for_any_number_of_images(kind: str) -> None:
    small = compacted(NETS[kind])
    fast = packed(small)
    assert any(isinstance(module, PackedConv2d) for module in fast.modules())
    assert not any(isinstance(module, GatedConv2d) for module in fast.modules())
    images = torch.rand(12, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = small(images, 0, {})
        assert torch.equal(fast(images, 0, {}), expected)
        # Convolutions have the same bits for any number of images; matrix products have not, on some processors.
        tolerance = 1e-6 if kind == "alexnet" else 0.0
        for size in (1, 5):
            parts = torch.cat([fast(part, 0, {}) for part in torch.split(images, size)])
            torch.testing.assert_close(parts, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", NETS)
def test_the_same_gradient_of_the_images(kind: str) -> None:
    small = compacted(NETS[kind])
    fast = packed(small)
    images = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        fast(images, 0, {})  # packs the weights
    gradients = []
    for net in (small, fast):
        pixels = images.clone().requires_grad_()
        net(pixels, 0, {}).square().sum().backward()
        assert pixels.grad is not None
        gradients.append(pixels.grad)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0])


def test_weights_are_packed_again_for_images_of_another_size() -> None:
    torch.manual_seed(0)
    layer = GatedConv2d(3, 5, 3, gate_in=None, gate_out="a", padding=1).requires_grad_(False)
    fast = PackedConv2d(layer.weight, layer.bias, 1, 1)
    with torch.no_grad():
        for size in (8, 4, 8):
            images = torch.rand(4, 3, size, size).contiguous(memory_format=torch.channels_last)
            added = torch.rand(4, 5, size, size).contiguous(memory_format=torch.channels_last)
            before = added.clone()
            for relu in (False, True):
                torch.testing.assert_close(
                    fast(images, 0, {}, added=added, relu=relu), layer(images, 0, {}, added=added, relu=relu)
                )
                torch.testing.assert_close(fast(images, 0, {}, relu=relu), layer(images, 0, {}, relu=relu))
            assert torch.equal(added, before)
            assert fast._packed[0] == (size, size)


def test_other_precisions_and_unusual_layers_stay_as_they_are() -> None:
    double = compacted(NETS["resnet"]).double()
    assert packed(double) is double
    linear = nn.Linear(2, 2)
    grey = GatedConv2d(1, 2, 3, gate_in=None, gate_out="a").requires_grad_(False)

    class Grey(Net):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear, self.nothing = grey, linear, None

        def forward(self, images: torch.Tensor, task: int, gates: object) -> torch.Tensor:
            raise NotImplementedError

    one_channel = packed(Grey())
    assert isinstance(one_channel.conv, GatedConv2d)
    assert isinstance(one_channel.linear, nn.Linear)
    assert one_channel.linear.weight is linear.weight
