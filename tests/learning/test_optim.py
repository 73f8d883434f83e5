"""LARS step by step, optimisers made from settings, and their fused implementations."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from clom.errors import UserError
from clom.learning.optim import LARS, OptimiserSettings, make_optimiser
from clom.testing.simulated_device import simulated_device, waits_so_far


def parameter(weights: list[float], gradient: list[float] | None = None) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(weights, dtype=torch.float64))
    made.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    return made


def moved(w: nn.Parameter, start: list[float]) -> list[float]:
    change: list[float] = (w.detach() - torch.tensor(start, dtype=torch.float64)).tolist()
    return change


@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_clipped_step_has_the_same_length_at_any_rate(lr: float) -> None:
    # |w| = 5, |g| = 1: trust |w|/|g| = .005, scale .05 at lr .1 and .005 at lr 1: the step has length .005 both times.
    w = parameter([3, 4], [0.6, 0.8])
    LARS([w], lr=lr, momentum=0.0, trust=0.001, clip=True).step()
    assert moved(w, [3, 4]) == pytest.approx([-0.003, -0.004], rel=1e-9)


def test_clipped_step_of_a_tiny_gradient_is_plain_sgd() -> None:
    # |g| = 1e-4: trust |w|/|g| = 50 is far above lr, so the scale is 1.
    w = parameter([3, 4], [0.6e-4, 0.8e-4])
    LARS([w], lr=0.1, momentum=0.0, trust=0.001, clip=True).step()
    assert moved(w, [3, 4]) == pytest.approx([-0.6e-5, -0.8e-5], rel=1e-9)


@pytest.mark.parametrize(("lr", "length"), [(0.1, 0.0005), (1.0, 0.005)])
def test_unclipped_step_is_proportional_to_the_rate(lr: float, length: float) -> None:
    w = parameter([3, 4], [0.6, 0.8])
    LARS([w], lr=lr, momentum=0.0, trust=0.001).step()
    assert moved(w, [3, 4]) == pytest.approx([-0.6 * length, -0.8 * length], rel=1e-9)


def test_unclipped_step_does_not_depend_on_the_gradients_length() -> None:
    w = parameter([3, 4], [0.6e-4, 0.8e-4])
    LARS([w], lr=1.0, momentum=0.0, trust=0.001).step()
    assert moved(w, [3, 4]) == pytest.approx([-0.003, -0.004], rel=1e-9)


def test_weight_decay_affects_the_step_and_its_scale() -> None:
    # local = .001 * 5 / (1 + .2 * 5) = .0025, times g + .2 w = (1.2, 1.6), times lr 1.
    w = parameter([3, 4], [0.6, 0.8])
    LARS([w], lr=1.0, momentum=0.0, weight_decay=0.2, trust=0.001).step()
    assert moved(w, [3, 4]) == pytest.approx([-0.003, -0.004], rel=1e-9)


def test_velocity_over_three_steps() -> None:
    # A single weight, gradient always +1: the scaled gradient is trust * w, the velocity .9 v + trust w.
    w = parameter([2.0])
    optimiser = LARS([w], lr=0.5, momentum=0.9, trust=0.01)
    expected, velocity = 2.0, 0.0
    for _ in range(3):
        w.grad = torch.ones_like(w)
        optimiser.step()
        velocity = 0.9 * velocity + 0.01 * expected
        expected -= 0.5 * velocity
        assert w.item() == pytest.approx(expected, rel=1e-12)
    assert optimiser.state[w]["velocity"].item() == pytest.approx(velocity, rel=1e-12)
    # By hand: v = .02, .0379, .0538205 and w = 1.99, 1.97105, 1.94413975.
    assert w.item() == pytest.approx(1.94413975, rel=1e-9)


def test_velocity_still_moves_weights_with_a_zero_gradient() -> None:
    w = parameter([3, 4], [0.6, 0.8])
    optimiser = LARS([w], lr=1.0, momentum=0.5, trust=0.001)
    optimiser.step()
    w.grad = torch.zeros_like(w)
    optimiser.step()
    assert moved(w, [3, 4]) == pytest.approx([-0.0045, -0.006], rel=1e-9)


def test_without_momentum_there_is_no_state() -> None:
    w = parameter([3, 4], [0.6, 0.8])
    optimiser = LARS([w], lr=1.0, momentum=0.0)
    optimiser.step()
    assert "velocity" not in optimiser.state[w]


def test_a_zero_vector_takes_the_plain_gradient() -> None:
    w = parameter([0, 0], [0.6, 0.8])
    LARS([w], lr=0.1, momentum=0.0).step()
    assert w.tolist() == pytest.approx([-0.06, -0.08])


def test_each_tensor_has_its_own_scale_and_is_unchanged_without_a_gradient() -> None:
    long, short, still = parameter([30, 40], [0.6, 0.8]), parameter([3, 4], [6, 8]), parameter([1, 1])
    LARS([long, short, still], lr=1.0, momentum=0.0, weight_decay=0.0, trust=0.001).step()
    assert moved(long, [30, 40]) == pytest.approx([-0.03, -0.04], rel=1e-9)
    assert moved(short, [3, 4]) == pytest.approx([-0.003, -0.004], rel=1e-9)
    assert still.tolist() == [1, 1]


@pytest.mark.parametrize(("kind", "maker"), [("sgd", SGD), ("adam", Adam), ("adamw", AdamW), ("lars", LARS)])
def test_every_kind_with_its_settings_per_group(kind: str, maker: type[torch.optim.Optimizer]) -> None:
    first = OptimiserSettings.model_validate({"kind": kind, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
    second = OptimiserSettings.model_validate({"kind": kind, "lr": 0.2, "trust": 0.02, "clip": True})
    a, b = parameter([1.0], [1.0]), parameter([2.0], [1.0])
    optimiser = make_optimiser([(first, [a]), (second, [b])])
    assert type(optimiser) is maker
    groups = optimiser.param_groups
    assert [group["lr"] for group in groups] == [0.1, 0.2]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert [group["params"][0] is wanted for group, wanted in zip(groups, (a, b), strict=True)] == [True, True]
    if kind in ("sgd", "lars"):
        assert [group["momentum"] for group in groups] == [0.9, 0.0]
    if kind == "lars":
        assert [(group["trust"], group["clip"]) for group in groups] == [(0.001, False), (0.02, True)]


def test_an_empty_group_is_skipped() -> None:
    settings = OptimiserSettings(kind="sgd", lr=0.1)
    assert len(make_optimiser([(settings, [parameter([1.0])]), (settings, [])]).param_groups) == 1


def test_mixed_kinds_are_refused() -> None:
    groups = [(OptimiserSettings(kind=kind), [parameter([1.0])]) for kind in ("adam", "sgd")]
    with pytest.raises(UserError, match=r"same kind for both, not adam, sgd"):
        make_optimiser(groups)


CPU = torch.device("cpu")
KINDS = ("adam", "adamw", "sgd")


def settings_of(kind: str) -> OptimiserSettings:
    decay = 0.1 if kind == "adamw" else 0.0
    return OptimiserSettings.model_validate({"kind": kind, "lr": 0.01, "momentum": 0.9, "weight_decay": decay})


def kernels(device: torch.device = CPU) -> list[nn.Parameter]:
    """A convolution's weight in channels_last and a bias."""
    torch.manual_seed(0)
    weight = torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    return [nn.Parameter(weight.to(device)), nn.Parameter(torch.randn(8).to(device))]


def train(optimiser: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], steps: range) -> list[Tensor]:
    """Steps with contiguous gradients, as a method that computes its own gradients may assign them."""
    for step in steps:
        randomness = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=randomness).to(parameter.device)
        optimiser.step()
    return [parameter.detach().cpu().clone() for parameter in parameters]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cpu_takes_the_steps_of_torchs_plain_loop(kind: str) -> None:
    settings, parameters, plain = settings_of(kind), kernels(), kernels()
    options = {"momentum": 0.9} if kind == "sgd" else {}
    loop = {"sgd": SGD, "adam": Adam, "adamw": AdamW}[kind](
        plain, lr=settings.lr, weight_decay=settings.weight_decay, foreach=False, fused=False, **options
    )
    made = make_optimiser([(settings, parameters)])
    assert same(train(made, parameters, range(5)), train(loop, plain, range(5)))


@pytest.mark.parametrize("kind", KINDS)
def test_fused_steps_are_repeatable_and_the_same_on_every_device(kind: str) -> None:
    settings, found = settings_of(kind), []
    for device in (CPU, CPU, simulated_device()):
        parameters = kernels(device)
        optimiser = make_optimiser([(settings, parameters)], fused=True)
        assert optimiser.param_groups[0]["fused"]
        found.append(train(optimiser, parameters, range(5)))
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    unfused = kernels()
    wanted = train(make_optimiser([(settings, unfused)], fused=False), unfused, range(5))
    for value, expected in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["earlier version", "other device", "same"])
def test_a_loaded_state_keeps_the_implementation_of_this_device(kind: str, before: str) -> None:
    settings, whole, parts = settings_of(kind), kernels(), kernels()
    wanted = train(make_optimiser([(settings, whole)]), whole, range(6))

    first = make_optimiser([(settings, parts)], fused=before == "other device")
    train(first, parts, range(3))
    state = copy.deepcopy(first.state_dict())
    if before == "earlier version":
        for group in state["param_groups"]:
            group.update(fused=None, foreach=None)
    again = make_optimiser([(settings, parts)])
    again.load_state_dict(state)
    assert (again.param_groups[0]["fused"], again.param_groups[0]["foreach"]) == (False, True)
    found = train(again, parts, range(3, 6))
    if before == "other device":  # its first steps were rounded differently
        for value, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    else:
        assert same(found, wanted)


def test_a_fused_state_continues_bit_identically() -> None:
    settings, whole, parts = settings_of("adam"), kernels(), kernels()
    wanted = train(make_optimiser([(settings, whole)], fused=True), whole, range(6))
    first = make_optimiser([(settings, parts)], fused=True)
    train(first, parts, range(3))
    again = make_optimiser([(settings, parts)], fused=True)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert same(train(again, parts, range(3, 6)), wanted)


@pytest.mark.parametrize("clip", [False, True])
def test_lars_never_waits_for_the_device(clip: bool) -> None:
    parameters = kernels(simulated_device())
    optimiser = LARS(parameters, lr=0.1, clip=clip)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    before = waits_so_far()
    optimiser.step()
    assert waits_so_far() == before
