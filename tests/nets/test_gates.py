"""Gates: their effect on units, and their gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from clom.nets.gates import per_channel, soft_gate


def slope_at(e: float, scale: float, dtype: torch.dtype, upstream: float = 1.0) -> float:
    """d(upstream * gate)/de of `soft_gate`, with HAT's s_max of 400."""
    embedding = torch.tensor([e], dtype=dtype, requires_grad=True)
    (upstream * soft_gate(embedding, scale, 400.0)).sum().backward()  # type: ignore[no-untyped-call]
    assert embedding.grad is not None
    return embedding.grad.item()


def plain_recipe(e: float, scale: float, dtype: torch.dtype) -> float:
    """HAT's two steps: autograd through the sigmoid, then the compensation factor."""
    embedding = torch.tensor([e], dtype=dtype, requires_grad=True)
    torch.sigmoid(scale * embedding).sum().backward()  # type: ignore[no-untyped-call]
    assert embedding.grad is not None
    steep = torch.cosh(torch.clamp(scale * embedding.detach(), -50, 50)) + 1
    return float(embedding.grad * (400.0 / scale) * steep / (torch.cosh(embedding.detach()) + 1))


def test_a_gate_multiplies_its_own_dimension() -> None:
    gate = torch.tensor([1.0, 0.0, 0.5])
    maps = torch.arange(1.0, 25.0).view(2, 3, 2, 2)
    expected = maps.clone()
    expected[:, 1] = 0
    expected[:, 2] *= 0.5
    assert torch.equal(maps * per_channel(gate, 4, 1), expected)
    vectors = torch.tensor([[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]])
    assert torch.equal(vectors * per_channel(gate, 2, 1), torch.tensor([[2.0, 0.0, 2.0], [5.0, 0.0, 3.5]]))
    weight = torch.ones(3, 2, 1, 1)
    assert (weight * per_channel(gate, 4, 0)).flatten().tolist() == [1, 1, 0, 0, 0.5, 0.5]


def test_soft_gate_is_a_scaled_sigmoid() -> None:
    embedding = torch.tensor([-6.0, -0.01, 0.0, 0.01, 6.0], dtype=torch.float64)
    expected = [0.0, 1 / (1 + math.exp(7)), 0.5, 1 / (1 + math.exp(-7)), 1.0]
    assert soft_gate(embedding, 700.0, 700.0).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [0.0025, 1.0, 10.0, 50.0])
def test_gradient_does_not_depend_on_s(scale: float) -> None:
    # 400 * sigmoid'(0.5) = 94.0015, which the two steps also give as far as float64 allows.
    assert slope_at(0.5, scale, torch.float64) == pytest.approx(94.0015, abs=5e-5)
    assert plain_recipe(0.5, scale, torch.float64) == pytest.approx(94.0015, abs=5e-4)


@pytest.mark.parametrize(("e", "expected"), [(-0.02, 99.990), (0.05, 99.9375)])
def test_gradient_in_float32_at_full_s(e: float, expected: float) -> None:
    assert slope_at(e, 400.0, torch.float32) == pytest.approx(expected, abs=5e-3)


def test_a_saturated_open_gate_can_still_close() -> None:
    # Why the backward pass is custom: at s * e = 20 the float32 sigmoid is 1 and its derivative 0.
    assert plain_recipe(0.05, 400.0, torch.float32) == 0
    assert slope_at(0.05, 400.0, torch.float32) > 99


def test_gradient_is_multiplied_by_the_upstream_gradient() -> None:
    assert slope_at(0.5, 1.0, torch.float64, upstream=-3.0) == pytest.approx(-3 * 94.0015, abs=5e-4)


def test_gradient_reaches_each_unit_separately() -> None:
    embedding = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 0.0], dtype=torch.float64)
    (soft_gate(embedding, 3.0, 400.0) * weights).sum().backward()  # type: ignore[no-untyped-call]

    def derivative(e: Tensor) -> Tensor:
        return torch.sigmoid(e) * (1 - torch.sigmoid(e))

    assert embedding.grad is not None
    torch.testing.assert_close(embedding.grad, 400.0 * weights * derivative(embedding.detach()))
