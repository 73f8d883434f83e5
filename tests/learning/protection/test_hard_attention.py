"""Hard attention: gates, update masks, capacity, and zero forgetting for any optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings, annealed_scale
from clom.nets import AlexNet, AlexNetSettings, ResNet18, ResNet18Settings
from clom.nets.gates import Gates
from clom.nets.layers import GatedLinear, Net


class Mlp(Net):
    """Two gated linear layers: inputs -> a -> b."""

    feature_group = "b"

    def __init__(self, n_in: int, n_a: int, n_b: int) -> None:
        super().__init__()
        self.first = GatedLinear(n_in, n_a, gate_in=None, gate_out="a")
        self.second = GatedLinear(n_a, n_b, gate_in="a", gate_out="b")
        self.n_features = n_b

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return F.relu(self.second(F.relu(self.first(images, gates)), gates))


def attention(net: Net, n_tasks: int = 1, **settings: float | bool) -> HardAttention:
    protection = HardAttention(net, HardAttentionSettings.model_validate(settings))
    for _ in range(n_tasks):
        protection.add_task()
    return protection.eval()


@torch.no_grad()
def set_gates(protection: HardAttention, task: int, **embeddings: list[float]) -> None:
    for group, values in embeddings.items():
        protection.embeddings_of(task)[group].copy_(torch.tensor(values))


@torch.no_grad()
def add_one_to_everything(protection: HardAttention) -> dict[str, Tensor]:
    """An 'optimiser step' that adds 1 to every shared weight; returns the update that was applied."""
    before = {name: p.clone() for name, p in protection.net.named_parameters()}
    protection.before_step()
    for parameter in protection.net.shared_parameters():
        parameter.add_(1.0)
    protection.after_step()
    return {name: p - before[name] for name, p in protection.net.named_parameters()}


def test_update_mask_by_hand() -> None:
    # sigmoid(700 e) is exactly 1, 0 and .5 for e = 6, -6 and 0; post = [1, 0, .5], pre = [1, 0].
    protection = attention(Mlp(4, 2, 3), n_tasks=2, binary=False)
    set_gates(protection, 0, a=[6, -6], b=[6, -6, 0])
    protection.begin(1)
    for _ in range(2):  # every step, not only the first
        applied = add_one_to_everything(protection)
        expected = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.5, 1.0]])
        torch.testing.assert_close(applied["second.weight"], expected)
        torch.testing.assert_close(applied["second.bias"], torch.tensor([0.0, 1.0, 0.5]))
        torch.testing.assert_close(applied["first.weight"], torch.tensor([[0.0] * 4, [1.0] * 4]))
        torch.testing.assert_close(applied["first.bias"], torch.tensor([0.0, 1.0]))


def test_binary_update_mask_is_exact() -> None:
    protection = attention(Mlp(4, 2, 3), n_tasks=2)
    set_gates(protection, 0, a=[0.01, -0.01], b=[0.01, -6, 0])
    before = protection.net.second.weight.clone()  # type: ignore[union-attr, operator]
    protection.begin(1)
    applied = add_one_to_everything(protection)
    assert torch.equal(applied["second.weight"] != 0, torch.tensor([[False, True], [True, True], [True, True]]))
    assert torch.equal(protection.net.second.weight[0, 0], before[0, 0])  # type: ignore[union-attr, index]


def test_the_first_task_may_change_everything() -> None:
    protection = attention(Mlp(4, 2, 3))
    protection.begin(0)
    assert all(torch.allclose(change, torch.ones(1)) for change in add_one_to_everything(protection).values())


def test_masks_of_all_old_tasks_accumulate() -> None:
    protection = attention(Mlp(4, 3, 1), n_tasks=3)
    set_gates(protection, 0, a=[1, -1, -1], b=[1])
    set_gates(protection, 1, a=[-1, 1, -1], b=[-1])
    protection.begin(2)
    applied = add_one_to_everything(protection)
    # Unit 1 of `a` belongs to task 1, b's only unit to task 0: Eq. 14 and 15 protect the weight between them as well.
    torch.testing.assert_close(applied["second.weight"], torch.tensor([[0.0, 0.0, 1.0]]))
    torch.testing.assert_close(applied["first.bias"], torch.tensor([0.0, 0.0, 1.0]))


def test_flattening_protects_exactly_the_columns_of_an_open_channel() -> None:
    settings = AlexNetSettings(channels=(2, 2, 3), paddings=(1, 1, 0), pools=(2, 1, 1), hidden=4, dropout=(0, 0))
    protection = attention(AlexNet(settings, 8), n_tasks=2)
    set_gates(protection, 0, conv1=[1, 1], conv2=[1, -1], conv3=[-1, 1, -1], fc=[1, -1, 1, -1])
    protection.begin(1)
    applied = add_one_to_everything(protection)
    protected = torch.zeros(4, 27, dtype=torch.bool)
    protected[0::2, 9:18] = True
    assert torch.equal(applied["fc.weight"] == 0, protected)
    kernels = applied["convs.2.weight"]
    assert torch.equal((kernels == 0).all((2, 3)), torch.tensor([[False, False], [True, False], [False, False]]))
    assert torch.equal((kernels == 0).any((2, 3)), (kernels == 0).all((2, 3)))


@pytest.mark.parametrize(("batch", "s"), [(0, 0.0025), (5, 200.00125), (9, 360.00025)])
def test_annealing_of_s(batch: int, s: float) -> None:
    assert annealed_scale(batch / 10, 400.0) == pytest.approx(s, rel=1e-9)


def test_gates_are_zero_or_one_outside_training() -> None:
    protection = attention(ResNet18(ResNet18Settings(width=4)), n_tasks=2)
    for task in range(2):
        gates = protection.gates(task)
        assert list(gates) == list(protection.net.gate_sizes())
        for group, gate in gates.items():
            assert set(gate.tolist()) <= {0.0, 1.0}
            assert torch.equal(gate == 1, protection.embeddings_of(task)[group] > 0)
    joined = torch.cat(list(protection.gates(0).values()))
    assert 0.3 < joined.mean().item() < 0.7


def test_gates_around_zero() -> None:
    protection = attention(Mlp(2, 5, 1))
    set_gates(protection, 0, a=[-6, -1e-30, 0, 1e-30, 6])
    assert protection.gates(0)["a"].tolist() == [0, 0, 0, 1, 1]
    soft = attention(Mlp(2, 3, 1), binary=False, s_max=10.0)
    set_gates(soft, 0, a=[0, 0.1, -0.1])
    assert soft.gates(0)["a"].tolist() == pytest.approx([0.5, 0.7310586, 0.2689414])


def test_used_units_and_capacity_by_hand() -> None:
    protection = attention(Mlp(2, 4, 3), n_tasks=3)
    set_gates(protection, 0, a=[1, -1, -1, -1], b=[-1, -1, -1])
    set_gates(protection, 1, a=[1, 1, -1, -1], b=[-1, 1, -1])
    set_gates(protection, 2, a=[-1, -1, -1, 1], b=[-1, -1, 1])
    assert [protection.used(n)["a"].tolist() for n in range(4)] == [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 0, 1],
    ]
    assert protection.capacity() == {"a": [0.25, 0.5, 0.75], "b": [0, 0.3333, 0.6667]}


def test_capacity_never_decreases() -> None:
    torch.manual_seed(0)
    protection = attention(ResNet18(ResNet18Settings(width=4)), n_tasks=4)
    capacity = protection.capacity()
    assert list(capacity) == list(protection.net.gate_sizes())
    for fractions in capacity.values():
        assert len(fractions) == 4
        assert fractions == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)
    # Four independent halves: about 15/16 of all units are used.
    last = [fractions[-1] for fractions in capacity.values()]
    assert 0.8 < sum(last) / len(last) <= 1


def test_only_the_current_embeddings_are_clamped_after_a_step() -> None:
    protection = attention(Mlp(2, 3, 1), n_tasks=2)
    set_gates(protection, 0, a=[7, 7, -9])
    set_gates(protection, 1, a=[7, 2, -9])
    protection.begin(1)
    protection.before_step()
    protection.after_step()
    assert protection.embeddings_of(0)["a"].tolist() == [7, 7, -9]
    assert protection.embeddings_of(1)["a"].tolist() == [6, 2, -6]


def test_penalty_of_first_and_later_tasks() -> None:
    protection = attention(Mlp(2, 3, 2), n_tasks=2, sparsity_first=0.75, sparsity_rest=0.5)
    values = torch.rand(5, 2)
    set_gates(protection, 0, a=[6, 6, -6], b=[-6, -6])
    protection.begin(0)
    # Near the end of the sweep the gates are [1, 1, 0], [0, 0]: two of five units.
    assert protection.training_features(values, 0, 0.9)[1].item() == pytest.approx(0.75 * 2 / 5)
    # At the start s = 1/700 and every gate is about one half.
    assert protection.training_features(values, 0, 0.0)[1].item() == pytest.approx(0.75 * 0.5, abs=2e-3)
    set_gates(protection, 1, a=[6, -6, 6], b=[-6, 6])
    protection.begin(1)
    # Three units are still free, two of them are opened; the one shared with task 0 costs nothing.
    assert protection.training_features(values, 1, 0.9)[1].item() == pytest.approx(0.5 * 2 / 3)


def test_what_can_be_followed_during_training() -> None:
    protection = attention(Mlp(4, 2, 3), n_tasks=2)
    set_gates(protection, 1, a=[6, -6], b=[6, -6, 1])
    assert protection.training_values() == {}, "no task is in training"
    protection.begin(1)
    protection.training_features(torch.rand(5, 4), 1, 0.5)
    values = protection.training_values()
    assert values["s"] == annealed_scale(0.5, 700)
    assert values["gates open/a"] == 0.5
    assert values["gates open/b"] == pytest.approx(2 / 3)
    protection.add_task()
    assert protection.training_values() == {}


def test_training_features_use_soft_gates() -> None:
    protection = attention(Mlp(2, 3, 2), s_max=10.0)
    protection.begin(0)
    values = torch.rand(5, 2)
    soft = {group: torch.sigmoid(5.05 * e) for group, e in protection.embeddings_of(0).items()}
    features, _ = protection.training_features(values, 0, 0.5)  # s = 0.1 + 9.9 / 2
    torch.testing.assert_close(features, protection.net(values, 0, soft))
    assert not torch.allclose(features, protection.features(values, 0))


def test_training_with_all_gates_open_and_no_penalty_is_the_bare_network() -> None:
    protection = attention(Mlp(2, 3, 2), sparsity_first=0.0)
    set_gates(protection, 0, a=[6] * 3, b=[6] * 2)
    protection.begin(0)
    values = torch.rand(5, 2)
    features, penalty = protection.training_features(values, 0, 0.5)
    assert penalty.item() == 0
    assert torch.equal(features, protection.net(values, 0, {}))


def test_parameters_that_a_task_may_change() -> None:
    protection = attention(ResNet18(ResNet18Settings(width=4)), n_tasks=3)
    movable = {id(p) for p in (*protection.weights(1), *protection.mask_parameters(1))}
    fixed = {
        id(p) for task in (0, 2) for p in (*protection.net.task_parameters(task), *protection.mask_parameters(task))
    }
    assert not movable & fixed
    assert movable | fixed == {id(p) for p in protection.parameters()}


# --------------------------------------------------------------------------------------------------- no forgetting

Optimisers = dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]
OPTIMISERS: Optimisers = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "sgd-decay": lambda ps: torch.optim.SGD(ps, lr=0.05, weight_decay=5e-4),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.01),
}


def drift(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], protect: str, **settings: float | bool) -> float:
    """Largest change of task 0's features after 20 + 20 steps with one optimiser carried over both tasks.

    `protect` is the update (ours), the gradient only (what most implementations do), or nothing.
    """
    torch.manual_seed(0)
    protection = attention(Mlp(8, 16, 12), n_tasks=2, **settings)
    heads = [nn.Linear(12, 2) for _ in range(2)]
    optimiser = make([*protection.net.shared_parameters()])
    data = [(torch.randn(32, 8) + task, torch.randint(2, (32,))) for task in range(2)]
    before = torch.zeros(0)
    for task, (values, labels) in enumerate(data):
        protection.begin(task)
        used = protection.used(task)
        for step in range(20):
            features, penalty = protection.training_features(values, task, step / 20)
            optimiser.zero_grad(set_to_none=False)
            (F.cross_entropy(heads[task](features), labels) + penalty).backward()  # type: ignore[no-untyped-call]
            if protect == "gradient":
                _mask_gradients(protection.net, used)
            protection.before_step()
            optimiser.step()
            if protect == "update":
                protection.after_step()
        if task == 0:
            before = protection.features(data[0][0], 0).detach()
            assert bool((before != 0).any())
    return (protection.features(data[0][0], 0) - before).abs().max().item()


def _mask_gradients(net: Net, used: Gates) -> None:
    for layer in net.gated_layers():
        pre = torch.ones(1) if layer.gate_in is None else used[layer.gate_in]
        assert layer.gate_out is not None
        assert layer.weight.grad is not None
        assert layer.bias is not None
        assert layer.bias.grad is not None
        layer.weight.grad *= 1 - torch.minimum(used[layer.gate_out][:, None], pre[None, :])
        layer.bias.grad *= 1 - used[layer.gate_out]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_masked_updates_forget_nothing(name: str) -> None:
    assert drift(OPTIMISERS[name], "update") == 0
    assert drift(OPTIMISERS[name], "nothing") > 1e-3


@pytest.mark.parametrize("name", ["momentum", "sgd-decay", "adam", "adamw"])
def test_masked_gradients_alone_would_forget(name: str) -> None:
    # Why the update is masked: leftover momentum and weight decay change weights whose gradient is zero.
    assert drift(OPTIMISERS[name], "gradient") > 1e-6


def test_soft_protection_forgets_at_small_s_only() -> None:
    steep, flat = (drift(OPTIMISERS["momentum"], "update", binary=False, s_max=s) for s in (700.0, 1.0))
    assert flat > 0.01
    assert steep < 0.02 * flat


def test_adding_a_task_does_not_change_old_ones() -> None:
    protection = attention(ResNet18(ResNet18Settings(width=4)), n_tasks=1)
    images = torch.rand(2, 3, 8, 8)
    before = protection.features(images, 0)
    state = copy.deepcopy(protection.state_dict())
    protection.add_task()
    protection.eval()
    assert protection.n_tasks == 2
    assert torch.equal(protection.features(images, 0), before)
    assert all(torch.equal(protection.state_dict()[name], value) for name, value in state.items())


def test_embeddings_are_initialised_independently_from_a_normal_distribution() -> None:
    torch.manual_seed(0)
    protection = attention(Mlp(2, 4000, 1), n_tasks=2, initial=0.5)
    first, second = (protection.embeddings_of(task)["a"].detach() for task in range(2))
    assert first.std().item() == pytest.approx(0.5, rel=0.05)
    assert first.mean().item() == pytest.approx(0, abs=0.03)
    assert not torch.equal(first, second)


def test_embeddings_with_a_mean_start_with_more_units_open() -> None:
    """84.1% of N(1, 1) are positive."""
    torch.manual_seed(0)
    gate = attention(Mlp(2, 4000, 1), n_tasks=1, initial_mean=1.0).gates(0)["a"]
    assert gate.mean().item() == pytest.approx(0.841, abs=0.02)


def with_projection(n_tasks: int = 1, **settings: float | bool) -> HardAttention:
    layer = GatedLinear(2, 3, gate_in="b", gate_out="projection")
    protection = HardAttention(Mlp(4, 2, 2), HardAttentionSettings.model_validate(settings), layer)
    for _ in range(n_tasks):
        protection.add_task()
    return protection.eval()


def test_a_shared_projection_is_protected_like_a_layer_of_the_network() -> None:
    protection = with_projection(n_tasks=2)
    set_gates(protection, 0, a=[1, 1], b=[1, -1], projection=[-1, 1, 1])
    layer = protection.projection
    assert layer is not None
    protection.begin(1)
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    protection.before_step()
    with torch.no_grad():
        layer.weight.add_(1.0)
        layer.bias.add_(1.0)
    protection.after_step()
    # Units 1 and 2 of the projection are used, as is unit 0 of its inputs.
    assert (layer.weight - before[0]).round().tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    assert (layer.bias - before[1]).round().tolist() == [1.0, 0.0, 0.0]
    assert all(any(p is own for p in protection.weights(1)) for own in layer.parameters())


def test_a_shared_projection_is_for_training_only() -> None:
    protection, plain = with_projection(n_tasks=2), attention(Mlp(4, 2, 2), n_tasks=2)
    assert protection.n_parameters() == plain.n_parameters() == sum(p.numel() for p in plain.parameters())
    assert list(protection.gates(0)) == list(protection.capacity()) == ["a", "b"]
    assert list(protection.sub_network(0)) == list(plain.sub_network(0))
    with pytest.raises(UserError, match="hard attention"):
        plain.projected(torch.rand(1, 2), 0, 0.5)


def test_a_shared_projection_has_soft_gates_and_a_penalty_in_training() -> None:
    protection = with_projection(sparsity_first=1.0, s_max=10.0)
    set_gates(protection, 0, a=[6, 6], b=[6, 6], projection=[-6, 0.05, 6])
    layer = protection.projection
    assert layer is not None
    protection.begin(0)
    features, s = torch.rand(5, 2), annealed_scale(0.5, 10.0)
    gate = torch.sigmoid(s * torch.tensor([-6.0, 0.05, 6.0]))
    expected = gate * F.relu(F.linear(features, layer.weight, layer.bias))
    torch.testing.assert_close(protection.projected(features, 0, 0.5), expected)
    _, penalty = protection.training_features(torch.rand(5, 4), 0, 0.5)
    open_gates = torch.sigmoid(torch.tensor(s * 6.0))
    assert float(penalty.detach()) == pytest.approx(float((4 * open_gates + gate.sum()) / 7), rel=1e-6)
