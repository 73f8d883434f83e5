"""ODIN, with the numbers of its specification."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clom.errors import UserError
from clom.ood.odin import ODIN, odin_block, odin_score, perturbed
from clom.ood.scores import Outputs

W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
X = torch.tensor([[1.0, 0.2], [0.1, 0.05]])


def linear(x: Tensor) -> Tensor:
    return x @ W.T


def score(logits: Tensor, temperature: float) -> Tensor:
    """The score of given logits, without a perturbation."""
    return odin_score(lambda x: x, logits, temperature, eps=0.0)


def order(values: Tensor) -> Tensor:
    return values.argsort(stable=True)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([order(order(values)).double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def test_1_signs_and_scores_at_temperature_1() -> None:
    # x~ = x - eps * sign(gradient of the loss)
    torch.testing.assert_close((X - perturbed(linear, X, 1.0, 0.1)) / 0.1, torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]))
    assert odin_score(linear, X, 1.0, 0.0).tolist() == pytest.approx([0.640971, 0.366296], abs=1e-6)
    assert odin_score(linear, X, 1.0, 0.1).tolist() == pytest.approx([0.681135, 0.402659], abs=1e-6)
    assert odin_score(linear, X, 1.0, 0.0014).tolist() == pytest.approx([0.641552, 0.366800], abs=1e-6)


def test_2_temperature_1000_and_a_larger_step_never_lowers_the_score() -> None:
    assert odin_score(linear, X, 1000.0, 0.0).tolist() == pytest.approx([0.333667, 0.333367], abs=1e-6)
    assert odin_score(linear, X, 1000.0, 0.1).tolist() == pytest.approx([0.333700, 0.333400], abs=1e-6)
    by_step = torch.stack([odin_score(linear, X, 1000.0, eps) for eps in (0.0, 0.0014, 0.01, 0.05, 0.1)])
    assert (by_step.diff(dim=0) > 0).all()


def test_3_first_order_at_temperature_1000() -> None:
    logits = torch.tensor([[5.0, 1.0, 0.0]])
    assert score(logits, 1000.0).item() == pytest.approx(0.334334, abs=5e-7)
    first_order = 1 / 3 + (5 - 2) / (3 * 1000)
    assert first_order == pytest.approx(0.334333, abs=5e-7)
    assert score(logits, 1000.0).item() == pytest.approx(first_order, abs=2e-6)


def test_4_temperature_changes_no_order_of_two_classes_and_tends_to_max_minus_mean_for_three() -> None:
    randomness = torch.Generator().manual_seed(0)
    two = torch.randn(1000, 2, generator=randomness) * 3
    orders = [order(score(two, temperature)) for temperature in (0.5, 1.0, 10.0, 1000.0)]
    assert all(torch.equal(one, orders[0]) for one in orders)
    three = torch.randn(1000, 3, generator=randomness) * 3
    warm, hot = score(three, 1.0), score(three, 1000.0)
    assert 0.85 < rank_correlation(warm, hot) < 0.95
    assert rank_correlation(hot, three.amax(1) - three.mean(1)) > 0.99999


def test_5_pixels_without_gradient_do_not_change() -> None:
    """A unit silenced by ReLU has gradient zero, which `>= 0` would treat as positive."""

    def dead_first(x: Tensor) -> Tensor:
        return torch.relu(x - torch.tensor([1.0, 0.0])) @ torch.tensor([[2.0, 0.0], [1.0, -1.0]])

    x = torch.tensor([[0.5, 0.3]])
    assert (perturbed(dead_first, x, 1.0, 0.1) - x).tolist() == [pytest.approx([0.0, 0.1])]


def test_6_calls_for_several_models_are_independent() -> None:
    def other(x: Tensor) -> Tensor:
        return -3 * x @ W.T

    alone = [odin_score(model, X.clone(), 1.0, 0.1) for model in (linear, other)]
    shared = X.clone()
    in_turn = [odin_score(model, shared, 1.0, 0.1) for model in (linear, other)]
    assert all(torch.equal(a, b) for a, b in zip(alone, in_turn, strict=True))
    assert torch.equal(shared, X)
    assert not shared.requires_grad
    assert not in_turn[0].requires_grad


def test_blocks_of_different_class_counts_compare_by_margin() -> None:
    """Pitfall 5: by S itself, a 2-class task with margin .1 beats a 10-class task with margin 20."""
    few, many = torch.tensor([[0.1, 0.0]]), torch.tensor([[20.0, *[0.0] * 9]])
    assert score(few, 1000.0).item() == pytest.approx(0.50003, abs=1e-5)
    assert score(many, 1000.0).item() == pytest.approx(0.1018, abs=1e-4)
    blocks = [odin_block(lambda x: x, logits, 1000.0, 0.0) for logits in (few, many)]
    assert blocks[0].amax().item() == pytest.approx(0.05, rel=1e-3)  # f_max - mean f
    assert blocks[1].amax().item() == pytest.approx(18.0, rel=0.02)
    assert blocks[1].dtype == torch.float32


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_blocks_are_normalised_probabilities(temperature: float) -> None:
    expected = (3 * odin_score(linear, X, temperature, 0.1) - 1) * temperature
    torch.testing.assert_close(odin_block(linear, X, temperature, 0.1).amax(1).double(), expected, rtol=1e-5, atol=1e-6)


def test_blocks_have_no_ties() -> None:
    """Pitfall 6: 10-class probabilities at T = 1000 collapse in float32."""
    logits = torch.randn(5000, 10, generator=torch.Generator().manual_seed(0))
    highest = odin_block(lambda x: x, logits, 1000.0, 0.0).amax(1)
    assert len(torch.unique(highest)) > 4980
    assert len(torch.unique((logits / 1000).softmax(1).amax(1))) < 4900


def test_confident_predictions_still_have_a_gradient() -> None:
    """At T = 1 a margin of 30 leaves a gradient of 1e-13, which underflows in float32."""
    x = torch.tensor([[30.0, 0.0]]).repeat(512, 1)
    assert (perturbed(lambda images: images, x, 1.0, 0.1)[:, 0] > x[:, 0]).all()


def test_under_no_grad_and_with_an_empty_batch() -> None:
    with torch.no_grad():
        assert torch.equal(perturbed(linear, X, 1.0, 0.1), perturbed(linear, X, 1.0, 0.1))
    assert odin_block(linear, X[:0]).shape == (0, 3)


def test_the_score_uses_the_odin_block() -> None:
    block = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    assert ODIN()(Outputs(-block, odin=block)).tolist() == [3.0, 2.0]
    with pytest.raises(UserError, match="differentiated"):
        ODIN()(Outputs(block))
