"""Adapters: pretrained features pass through, an untrained adapter is the identity, old tasks are protected."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.nets import AdapterNet, AdapterSettings, make_net
from clom.nets.compact import compact, open_features

SETTINGS = AdapterSettings(weights="random", width=0.05, hidden=12)


def make(n_tasks: int = 2) -> AdapterNet:
    torch.manual_seed(0)
    net = make_net(SETTINGS, 8)
    assert isinstance(net, AdapterNet)
    for _ in range(n_tasks):
        net.add_task()
    return net.eval()


def trained_like(net: AdapterNet) -> AdapterNet:
    for scale in net.outer.scales:
        torch.nn.init.normal_(scale)
    return net


def images(seed: int = 0) -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_an_untrained_adapter_is_the_identity() -> None:
    net = make()
    features = net.backbone(images())
    assert features.std() > 0
    for task in (0, 1):
        for gates in ({}, {"adapter": torch.ones(12)}, {"adapter": torch.zeros(12)}):
            assert torch.equal(net(images(), task, gates), features)


def test_a_later_task_starts_from_the_pretrained_features_too() -> None:
    net = trained_like(make(1))
    assert not torch.allclose(net(images(), 0, {}), net.backbone(images()))
    net.add_task()
    assert torch.equal(net(images(), 1, {}), net.backbone(images()))


def test_a_closed_adapter_is_the_identity() -> None:
    net = trained_like(make())
    assert torch.equal(net(images(), 1, {"adapter": torch.zeros(12)}), net.backbone(images()))


def test_takes_precomputed_features() -> None:
    net, gates = trained_like(make()), {"adapter": torch.tensor([1.0, 0] * 6)}
    assert torch.equal(net(net.backbone(images()), 1, gates), net(images(), 1, gates))


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_the_compact_network_is_equal(opened: list[bool], task: int) -> None:
    net, gates = trained_like(make()), {"adapter": torch.tensor(opened).float()}
    small = compact(net, task, gates)
    torch.testing.assert_close(small(images(), 0, {}), net(images(), task, gates), atol=1e-5, rtol=1e-4)
    assert small.n_features == net.n_features == len(open_features(net, gates))
    assert isinstance(small, AdapterNet)
    assert small.inner.out_features == small.outer.in_features == max(1, sum(opened))
    assert small.backbone.stem.weight is net.backbone.stem.weight, "the backbone must be shared, not copied"


def test_only_the_adapter_can_learn() -> None:
    net = make()
    shared, own = net.shared_parameters(), net.task_parameters(1)
    assert {id(p) for p in shared} == {id(p) for p in (net.inner.weight, net.inner.bias, net.outer.weight)}
    assert [id(p) for p in own] == [id(net.outer.scales[1])]
    assert net.gate_sizes() == {"adapter": 12}


@pytest.mark.parametrize("binary", [True, False])
def test_hard_attention_protects_old_tasks(binary: bool) -> None:
    """The first task's features do not change, whatever an optimiser does for the second task."""
    net = make(0)
    protection = HardAttention(net, HardAttentionSettings(binary=binary))
    protection.add_task()
    trained_like(net)
    before = protection.features(images(), 0).detach().clone()
    protection.add_task()
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    protection.begin(1)
    optimiser = torch.optim.SGD([*protection.weights(1), *protection.mask_parameters(1)], lr=5.0, weight_decay=0.1)
    for step in range(5):
        features, penalty = protection.training_features(images(step), 1, step / 5)
        optimiser.zero_grad()
        (features.pow(2).mean() + penalty).backward()  # type: ignore[no-untyped-call]
        protection.before_step()
        optimiser.step()
        protection.after_step()
    after = protection.features(images(), 0)
    if binary:
        assert torch.equal(after, before)
    else:
        torch.testing.assert_close(after, before, atol=1e-3, rtol=1e-3)
    changed = {
        name for name, value in net.state_dict().items() if name in weights and not torch.equal(value, weights[name])
    }
    assert changed == {"inner.weight", "inner.bias", "outer.weight", "outer.scales.1"}
