"""The MNIST network: sizes, the forward pass, and gates of flattened channels."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets import AlexNet, AlexNetSettings, make_net

TINY = AlexNetSettings(
    channels=(4, 5, 6), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 1, 1), hidden=7, dropout=(0.0, 0.0)
)


def build(settings: AlexNetSettings = TINY, size: int = 8) -> AlexNet:
    torch.manual_seed(0)
    net = AlexNet(settings, size)
    net.add_task()
    return net.eval()


def images() -> Tensor:
    return torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_sizes_of_the_papers_network() -> None:
    net = make_net(AlexNetSettings(), 28)
    assert isinstance(net, AlexNet)
    # 28 -> 26 -> 13 -> 11 -> 5 -> 4 -> 2: the last map has 2 x 2 pixels.
    assert net.fc.weight.shape == (800, 256 * 4)
    assert net.fc.spread == 4
    by_hand = (3 * 64 * 9 + 64) + (64 * 128 * 9 + 128) + (128 * 256 * 4 + 256) + (1024 * 800 + 800)
    assert sum(p.numel() for p in net.shared_parameters()) == by_hand == 1_026_976
    assert net.gate_sizes() == {"conv1": 64, "conv2": 128, "conv3": 256, "fc": 800}


def test_forward_step_by_step() -> None:
    net = build()
    gates = {group: torch.rand(size) for group, size in net.gate_sizes().items()}
    values = images()
    weights = [p.detach() for p in net.shared_parameters()]
    for number, (padding, pool) in enumerate([(1, 2), (1, 1), (0, 1)]):
        values = F.relu(F.conv2d(values, weights[2 * number], weights[2 * number + 1], padding=padding))
        values = F.max_pool2d(values, pool) * gates[f"conv{number + 1}"][None, :, None, None]
    expected = F.relu(values.flatten(1) @ weights[6].T + weights[7]) * gates["fc"]
    with torch.no_grad():
        torch.testing.assert_close(net(images(), 0, gates), expected)


def test_memory_format_does_not_change_features() -> None:
    net = build()
    nhwc = copy.deepcopy(net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        expected = net(images(), 0, {})
        torch.testing.assert_close(nhwc(images().contiguous(memory_format=torch.channels_last), 0, {}), expected)


@pytest.mark.parametrize("unit", [0, 2, 5])
def test_a_gate_covers_exactly_the_columns_of_its_channel(unit: int) -> None:
    net = build()
    spread = net.fc.spread
    assert spread == 9
    gate = torch.ones(6)
    gate[unit] = 0
    with torch.no_grad():
        before = net(images(), 0, {"conv3": gate})
        irrelevant = []
        for column in range(6 * spread):
            other = copy.deepcopy(net)
            other.fc.weight[:, column] += 1.0
            if torch.equal(other(images(), 0, {"conv3": gate}), before):
                irrelevant.append(column)
        dead = (net.convs[2](_third_input(net), 0, {}).relu() == 0).all(0).flatten()
    own = set(range(unit * spread, (unit + 1) * spread))
    # Columns of pixels that are zero in all three images do not matter either.
    assert set(irrelevant) == own | set(dead.nonzero().flatten().tolist())
    assert len(irrelevant) < 4 * spread


def _third_input(net: AlexNet) -> Tensor:
    values = F.max_pool2d(net.convs[0](images(), 0, {}).relu(), 2)
    result: Tensor = net.convs[1](values, 0, {}).relu()
    return result


def test_dropout_only_in_training() -> None:
    net = build(TINY.model_copy(update={"dropout": (0.2, 0.5)}))
    plain = build()
    with torch.no_grad():
        assert torch.equal(net(images(), 0, {}), plain(images(), 0, {}))
        net.train()
        assert not torch.equal(net(images(), 0, {}), plain(images(), 0, {}))
        # Dropout of the features: half of them are zero, the others doubled.
        net.dropouts = (0.0, 0.0, 0.0)
        dropped = net(images(), 0, {})
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], 2 * plain(images(), 0, {})[kept])


def test_too_small_images_are_rejected() -> None:
    with pytest.raises(UserError, match="too small"):
        AlexNet(AlexNetSettings(), 8)
