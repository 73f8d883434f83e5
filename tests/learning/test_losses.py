"""The losses, compared with slow reference implementations and hand-computed values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.learning.losses import (
    asymmetric_contrastive,
    relation_distillation,
    sparsity,
    supervised_contrastive,
)


def unit_vectors(n: int, seed: int, d: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64))


def slow_contrastive(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Eq. 3 literally: sums over anchors, their positives and everything but the anchor."""
    n = len(z)
    anchors = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        positives = [j for j in others if labels[j] == labels[i]]
        if not positives:
            continue
        denominator = torch.stack([torch.exp(z[i] @ z[j] / temperature) for j in others]).sum()
        terms = [-torch.log(torch.exp(z[i] @ z[p] / temperature) / denominator) for p in positives]
        anchors.append(torch.stack(terms).mean())
    return torch.stack(anchors).mean()


def authors_contrastive(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The authors' code line by line (CSI's `Supervised_NT_xent`): the diagonal stays among the positives."""
    n = len(z)
    similarity = torch.exp(z @ z.T / temperature) * (1 - torch.eye(n, dtype=z.dtype))
    similarity = -torch.log(similarity / similarity.sum(1, keepdim=True) + 1e-8)
    same = (labels[:, None] == labels[None, :]).to(z.dtype)
    return (same / same.sum(1, keepdim=True) * similarity).sum() / n


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 0, 0, 1, 0, 7]])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_equals_the_double_loop(labels: list[int], temperature: float) -> None:
    for seed in range(3):
        z, y = unit_vectors(8, seed), torch.tensor(labels)
        value = supervised_contrastive(z, y, temperature)
        # The loss is always computed in float32 because of autocast: hence the tolerance.
        assert value.item() == pytest.approx(slow_contrastive(z, y, temperature).item(), rel=2e-6)


def test_gradient_equals_the_double_loop() -> None:
    y = torch.tensor([0, 1, 2, 0, 0, 1, 0, 7])
    fast, slow = unit_vectors(8, 3).requires_grad_(), unit_vectors(8, 3).requires_grad_()
    supervised_contrastive(fast, y, 0.07).backward()  # type: ignore[no-untyped-call]
    slow_contrastive(slow, y, 0.07).backward()  # type: ignore[no-untyped-call]
    assert fast.grad is not None
    assert slow.grad is not None
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-4, atol=1e-5)


def test_by_hand() -> None:
    # Two equal vectors of class 0 and an orthogonal one of class 1: only the two are anchors, -log(e / (e + 1)) each.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    value = supervised_contrastive(z, torch.tensor([0, 0, 1]), 1.0)
    assert value.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)


def test_without_any_positives_loss_and_gradient_are_zero() -> None:
    z = F.normalize(torch.randn(3, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    loss = supervised_contrastive(z, torch.arange(3), 0.07)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert z.grad is not None
    assert not z.grad.any()


def test_a_sample_without_positives_is_a_negative_but_no_anchor() -> None:
    z, y = unit_vectors(5, 0), torch.tensor([0, 0, 1, 1, 2])
    alone = z.clone().requires_grad_()
    supervised_contrastive(alone, y, 0.5).backward()  # type: ignore[no-untyped-call]
    assert alone.grad is not None
    assert bool((alone.grad[4] != 0).any())
    without = supervised_contrastive(z[:4], y[:4], 0.5).item()
    assert supervised_contrastive(z, y, 0.5).item() > without


def test_small_temperature_does_not_overflow() -> None:
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    # The positive is opposite to its anchor: the similarity of another sample is 2 / tau higher.
    value = supervised_contrastive(z, torch.tensor([0, 0, 1, 1]), 1e-3)
    assert value.item() == pytest.approx(2000, rel=1e-5)


def test_half_precision_is_computed_in_float32() -> None:
    z, y = unit_vectors(8, 1).to(torch.bfloat16), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    value = supervised_contrastive(z, y, 0.07)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(slow_contrastive(z.double(), y, 0.07).item(), rel=1e-5)


@pytest.mark.parametrize(("labels", "positives"), [([0, 0, 1, 1, 2, 2, 3, 3], 1), ([0, 0, 0, 0, 1, 1, 1, 1], 3)])
def test_authors_form(labels: list[int], positives: int) -> None:
    # 18.4207 = -log 1e-8 is the anchor's own term in the authors' code.
    y = torch.tensor(labels)
    z = unit_vectors(8, 0)
    paper = supervised_contrastive(z, y, 0.5).item()
    value = supervised_contrastive(z, y, 0.5, authors_form=True).item()
    assert value == pytest.approx((positives * paper + 18.4207) / (positives + 1), abs=1e-4)
    assert value == pytest.approx(authors_contrastive(z, y, 0.5).item(), abs=1e-5)


def test_authors_form_has_a_smaller_gradient() -> None:
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    ours, theirs = unit_vectors(8, 0).requires_grad_(), unit_vectors(8, 0).requires_grad_()
    supervised_contrastive(ours, y, 0.5).backward()  # type: ignore[no-untyped-call]
    supervised_contrastive(theirs, y, 0.5, authors_form=True).backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(theirs.grad, 0.75 * ours.grad)


# Co2L: two views each of images of class 0 (past) and classes 2 and 3 (current),
# as unit vectors at these angles.
ANGLES = (0.0, 100.0, 200.0, 20.0, 120.0, 230.0)
CHANGES = (5.0, -5.0, 10.0, 0.0, 5.0, -10.0)
CO2L_LABELS = torch.tensor([0, 2, 3, 0, 2, 3])
CURRENT = CO2L_LABELS >= 2


def at(angles: Sequence[float]) -> Tensor:
    radians = torch.deg2rad(torch.tensor(angles))
    return torch.stack([radians.cos(), radians.sin()], 1)


def test_asymmetric_contrastive_of_the_specification() -> None:
    z = at(ANGLES)
    unscaled = asymmetric_contrastive(z, CO2L_LABELS, CURRENT, 0.5, 0.5).item()
    assert unscaled == pytest.approx(0.2195325, abs=1e-6)
    assert unscaled * 6 / 4 == pytest.approx(0.3292988, abs=1e-6)
    assert asymmetric_contrastive(z, CO2L_LABELS, CURRENT, 0.5, 0.07).item() == pytest.approx(1.5680896, abs=1e-5)
    all_anchors = asymmetric_contrastive(z, CO2L_LABELS, torch.ones(6, dtype=torch.bool), 0.5, 0.5).item()
    assert all_anchors == pytest.approx(0.3066470, abs=1e-6)
    assert all_anchors == pytest.approx(supervised_contrastive(z, CO2L_LABELS, 0.5).item(), abs=1e-6)


def test_each_anchor_of_the_specification() -> None:
    expected = [0, 0.388028, 0.355121, 0, 0.376503, 0.197543]
    for row, value in enumerate(expected):
        alone = CURRENT & (torch.arange(6) == row)
        loss = 6 * asymmetric_contrastive(at(ANGLES), CO2L_LABELS, alone, 0.5, 0.5).item()
        assert loss == pytest.approx(value, abs=1e-5)


def test_old_samples_receive_gradients_as_negatives_only() -> None:
    z = at(ANGLES).requires_grad_()
    asymmetric_contrastive(z, CO2L_LABELS, CURRENT, 0.5, 0.5).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    expected = [0.033941, 0.231055, 0.275013, 0.068711, 0.274943, 0.186902]
    assert z.grad.norm(dim=1).tolist() == pytest.approx(expected, abs=1e-5)


def test_batches_without_current_samples_or_positives_have_zero_loss() -> None:
    z = at(ANGLES).requires_grad_()
    no_anchors = torch.zeros(6, dtype=torch.bool)
    loss = asymmetric_contrastive(z, CO2L_LABELS, no_anchors, 0.5, 0.07)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert z.grad is not None
    assert not z.grad.any()
    no_positives = asymmetric_contrastive(at(ANGLES), torch.arange(6), ~no_anchors, 0.5, 0.07)
    assert no_positives.item() == 0


def test_relation_distillation_of_the_specification() -> None:
    past = at([angle + change for angle, change in zip(ANGLES, CHANGES, strict=True)])
    value = relation_distillation(at(ANGLES), past, 0.2, 0.01).item()
    assert value == pytest.approx(0.0212092, abs=1e-6)
    assert value * 6 == pytest.approx(0.1272550, abs=5e-6)


@pytest.mark.parametrize(
    ("past_temperature", "value", "gradient"), [(0.2, 0.1101478, 0.0), (0.01, 0.0212092, 0.0696663)]
)
def test_equal_networks_are_at_the_minimum_only_at_equal_temperatures(
    past_temperature: float, value: float, gradient: float
) -> None:
    z, past = at(ANGLES).requires_grad_(), at(ANGLES).requires_grad_()
    loss = relation_distillation(z, past, 0.2, past_temperature)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(value, abs=1e-6)  # the entropy of the old similarities at equal temperatures
    assert z.grad is not None
    assert z.grad.abs().max().item() == pytest.approx(gradient, abs=1e-6)
    assert past.grad is None


def test_relation_distillation_is_finite_where_a_softmax_underflows() -> None:
    # Row 0 without itself is [100, -100]; log(softmax) is -inf, log_softmax is -200.
    z = torch.tensor([[1.0, 0], [1, 0], [-1, 0]])
    past = torch.tensor([[1.0, 0], [-1, 0], [1, 0]])  # row 0 is similar to the third sample only, row 1 to both others
    assert torch.tensor([100.0, -100.0]).softmax(0).log()[1].item() == -math.inf
    value = relation_distillation(z, past, 0.01, 0.01).item()
    assert value == pytest.approx((200 + 100 + math.log(2)) / 3, rel=1e-5)


def test_relation_distillation_of_a_single_pair_is_zero() -> None:
    assert relation_distillation(at((0.0, 90.0)), at((0.0, 10.0)), 0.2, 0.01).item() == 0


def test_sparsity_is_one_ratio_over_all_layers() -> None:
    gates = [torch.tensor([1.0, 1, 0, 0]), torch.tensor([1.0, 0])]
    used = [torch.tensor([1.0, 0, 0, 0]), torch.tensor([0.0, 0])]
    assert sparsity(gates, used).item() == pytest.approx(0.4)  # the mean of per-layer ratios would be 0.41667
    assert sparsity(gates, [torch.zeros(4), torch.zeros(2)]).item() == pytest.approx(0.5)


def test_sparsity_gradient_reaches_only_free_units() -> None:
    gates = torch.tensor([0.5, 0.5, 0.5, 0.5], requires_grad=True)
    sparsity([gates], [torch.tensor([1.0, 0.5, 0.0, 0.0])]).backward()  # type: ignore[no-untyped-call]
    assert gates.grad is not None
    torch.testing.assert_close(gates.grad, torch.tensor([0.0, 0.5, 1.0, 1.0]) / 2.5)


def test_sparsity_of_a_full_network_is_zero() -> None:
    assert sparsity([torch.ones(3)], [torch.ones(3)]).item() == 0
