"""Parallel modules: published sizes, the modules that a path trains and uses, freezing, saving and loading."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from clom.errors import UserError
from clom.learning.loop import generator
from clom.methods.a_rps.paths import PathNet, PathSettings, draw_path, union

SMALL = PathSettings(widths=(4, 4, 6), pools=(2,), modules=4)


def small(*paths: list[int]) -> PathNet:
    """A network with the first path followed by these."""
    torch.manual_seed(0)
    net = PathNet(SMALL, 8)
    for path in paths:
        net.begin(torch.tensor(path))
    return net


def state_of(net: PathNet, mask: Tensor) -> list[Tensor]:
    """Parameters and running statistics of the marked modules."""
    return [value.clone() for module in net.modules_in(mask) for value in module.state_dict().values()]


def skip_parameters(net: PathNet) -> list[Tensor]:
    return [value for level in net._levels() if level.skip is not None for value in level.skip.parameters()]


def train_briefly(net: PathNet) -> None:
    net.freeze()
    net.train()
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        net(torch.rand(8, 3, 8, 8)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    net.eval()


def n_parameters(net: PathNet) -> int:
    return sum(p.numel() for p in net.parameters())


def test_published_parameter_counts() -> None:
    """With 100 classes: 12.60 million for M = 1 and 89.59 million for M = 8 with all modules."""
    net = PathNet(PathSettings(), 32)
    one = n_parameters(net)
    net.begin(torch.full((9,), 5))
    per_path, classifier = n_parameters(net) - one, (net.n_features + 1) * 100
    assert f"{(one + classifier) / 1e6:.2f}" == "12.60"
    assert f"{(one + 7 * per_path + classifier) / 1e6:.2f}" == "89.59"


def test_modules_are_created_when_first_selected() -> None:
    net = small()
    sizes = [n_parameters(net)]
    for path in ([0, 0, 0], [0, 2, 0], [0, 2, 1], [0, 2, 1]):
        net.begin(torch.tensor(path))
        sizes.append(n_parameters(net))
    grown = [after - before for before, after in pairwise(sizes)]
    second = 2 * (4 * 4 * 9 + 4 + 2 * 4)
    third = (4 * 6 * 9 + 6 + 2 * 6) + (6 * 6 * 9 + 6 + 2 * 6)
    assert grown == [0, second, third, 0]


def test_masks() -> None:
    """L = 3, M = 4."""
    net = small([2, 0, 1])
    fixed, path = net.fixed(), net.path()
    assert fixed.int().tolist() == [[1, 0, 0, 0]] * 3
    assert path.int().tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    used = union(net.paths, 4)
    assert used.int().tolist() == [[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    exist = [[int(str(module) in level.parallel) for module in range(4)] for level in net._levels()]
    assert exist == used.int().tolist(), "inference uses all existing modules"


def test_a_level_is_the_sum_of_its_modules_and_its_skip() -> None:
    net = small([1, 1, 1]).eval()
    first, same, wider = net._levels()
    images, maps = torch.randn(2, 3, 8, 8), torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(first(images), (first.module(0)(images) + first.module(1)(images)).relu())
    torch.testing.assert_close(same(maps), (maps + same.module(0)(maps) + same.module(1)(maps)).relu())
    assert wider.skip is not None
    skipped = wider.skip(maps)
    assert skipped.shape == (2, 6, 8, 8)
    torch.testing.assert_close(wider(maps), (skipped + wider.module(0)(maps) + wider.module(1)(maps)).relu())


def test_expected_number_of_new_modules() -> None:
    """Nine levels of eight modules, paths drawn with replacement."""
    randomness, n_repeats, n_paths = generator(0, "test"), 600, 10
    fresh, used = torch.zeros(n_paths), torch.zeros(n_paths)
    for _ in range(n_repeats):
        fixed = torch.zeros(9, 8, dtype=torch.bool)
        for number in range(n_paths):
            path = union(draw_path(fixed, randomness)[None], 8)
            assert path.sum(1).tolist() == [1] * 9
            fresh[number] += (path & ~fixed).sum()
            fixed |= path
            used[number] += fixed.sum() / 9
    assert (fresh[:5] / n_repeats).tolist() == pytest.approx([9, 7.875, 6.891, 6.029, 5.276], abs=0.2)
    assert (used[:5] / n_repeats).tolist() == pytest.approx([1, 1.875, 2.641, 3.311, 3.897], abs=0.05)
    assert float(used[9] / n_repeats) == pytest.approx(5.90, abs=0.05)


def test_free_modules_can_be_preferred() -> None:
    fixed = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=torch.bool)
    drawn = torch.stack([draw_path(fixed, generator(seed), prefer_free=True) for seed in range(40)])
    assert set(drawn[:, 0].tolist()) == {2}
    assert set(drawn[:, 1].tolist()) == {0}
    assert set(drawn[:, 2].tolist()) == {0, 1, 2}, "if none is free, any may be drawn"


def test_frozen_modules_do_not_change() -> None:
    """Weights and running statistics of frozen modules stay bit-identical; the others change."""
    net = small([2, 0, 1])
    fixed, new = net.fixed(), net.path() & ~net.fixed()
    frozen, trained = state_of(net, fixed), state_of(net, new)
    skips = [value.clone() for value in skip_parameters(net)]
    train_briefly(net)
    assert all(torch.equal(a, b) for a, b in zip(frozen, state_of(net, fixed), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(trained, state_of(net, new), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(skips, skip_parameters(net), strict=True))


def test_the_current_path_keeps_training_until_the_next_one() -> None:
    net = small()
    before = state_of(net, net.path())
    train_briefly(net)
    assert not any(torch.equal(a, b) for a, b in zip(before, state_of(net, net.path()), strict=True))


def test_loading_rebuilds_exactly_the_stored_modules() -> None:
    stored = small([2, 0, 1], [2, 3, 0])
    train_briefly(stored)
    for other in (small(), small([1, 1, 1]), small([0, 3, 0], [2, 0, 1], [1, 1, 1])):
        other.load_state_dict(stored.state_dict())
        assert list(other.state_dict()) == list(stored.state_dict())
        assert torch.equal(other.paths, stored.paths)
        images = torch.rand(4, 3, 8, 8)
        assert torch.equal(other.eval()(images), stored.eval()(images))


@pytest.mark.parametrize(
    "paths", [torch.full((1, 3), 4), torch.zeros(1, 2).long(), torch.zeros(1, 3), -torch.ones(1, 3).long()]
)
def test_damaged_paths_are_refused(paths: Tensor) -> None:
    state = small().state_dict() | {"paths": paths}
    with pytest.raises(ValueError, match="do not fit 3 levels of 4 modules"):
        small().load_state_dict(state)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_images_of_any_size(size: int) -> None:
    features = PathNet(PathSettings(widths=(4, 6, 8), pools=(1, 2)), size)(torch.rand(2, 3, size, size))
    assert features.shape == (2, 8)


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be halved 3 times: shorten paths\.pools"):
        PathNet(PathSettings(widths=(4, 4, 4), pools=(1, 2, 3)), 4)
    with pytest.raises(ValidationError, match="name levels above 2, the number of widths"):
        PathSettings(widths=(4, 4), pools=(3,))
    with pytest.raises(ValidationError, match="at least one level"):
        PathSettings(widths=(), pools=())
