"""OOD scores, with the numbers of their specification."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clom.errors import UserError
from clom.evaluation.metrics import auc_grid
from clom.ood.scores import (
    GEN,
    KNN,
    MSP,
    Energy,
    Mahalanobis,
    MaxLogit,
    NegEntropy,
    Outputs,
    ReAct,
    RelativeMahalanobis,
    Score,
    ViM,
)

LOGITS = Outputs(torch.tensor([[4.0, 1.0, 0.0], [2.0, 1.9, 1.8], [0.1, 0.0, 0.0], [-3.0, -5.0, -9.0]]))


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (MSP(), [0.93624, 0.36717, 0.35591, 0.87888]),
        (MaxLogit(), [4, 2, 0.1, -3]),
        (Energy(), [4.06588, 3.00194, 1.13307, -2.87089]),
        (NegEntropy(), [-0.27431, -1.09529, -1.09748, -0.38007]),
    ],
)
def test_scores_of_blocks(score: Score, expected: list[float]) -> None:
    assert score(LOGITS).tolist() == pytest.approx(expected, abs=1e-5)


def test_energy_lies_between_its_bounds() -> None:
    block = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
    highest, energy = MaxLogit()(Outputs(block)), Energy()(Outputs(block))
    assert (energy >= highest).all()
    assert (energy <= highest + math.log(7) + 1e-6).all()


def test_gen_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]])
    expected = -sum((q * (1 - q)) ** 0.1 for q in (0.7, 0.2, 0.1))
    assert GEN()(Outputs(p.log())).item() == pytest.approx(expected, abs=1e-5)
    assert GEN(top=1)(Outputs(p.log())).item() == pytest.approx(-(0.21**0.1), abs=1e-5)


TRAIN = torch.tensor([[0, 0], [2, 0], [1, 1], [1, -1], [10, 0], [12, 0], [11, 1], [11, -1]]).float()
OWN = Outputs(torch.zeros(8, 2), TRAIN, torch.arange(8) // 4)
QUERIES = torch.tensor([[1, 0], [6, 0], [1, 3]]).float()


def test_mahalanobis() -> None:
    score = Mahalanobis(shrink=0.0).fit(OWN)
    assert score(Outputs(torch.zeros(3, 2), QUERIES)).tolist() == pytest.approx([0, -50, -18], abs=1e-6)


def test_relative_mahalanobis() -> None:
    score = RelativeMahalanobis(shrink=0.0).fit(OWN)
    assert (-score(Outputs(torch.zeros(3, 2), QUERIES))).tolist() == pytest.approx([-0.980, 50, -0.980], abs=1e-3)


HEAD = torch.tensor([[1.0, -0.5], [-1.0, 0.25]]), torch.tensor([0.5, -0.25])
OVER_FEATURES: list[Callable[[], Score]] = [Mahalanobis, RelativeMahalanobis, lambda: KNN(k=1), ViM, ReAct]


@pytest.mark.parametrize("make", OVER_FEATURES)
def test_closed_features_do_not_matter(make: Callable[[], Score]) -> None:
    """Head weights of closed units can be anything: they are never used."""
    weight, bias = HEAD

    def padded(values: Tensor, value: float = 0.0) -> Tensor:
        return torch.nn.functional.pad(values, (2, 3), value=value)

    block, own_block = torch.zeros(3, 2), TRAIN @ weight.T + bias
    plain = make().fit(Outputs(own_block, TRAIN, OWN.labels, linear_head=HEAD))
    wide_head = padded(weight, 8.0), bias
    wide = make().fit(Outputs(own_block, padded(TRAIN), OWN.labels, linear_head=wide_head))
    torch.testing.assert_close(
        plain(Outputs(block, QUERIES, linear_head=HEAD)), wide(Outputs(block, padded(QUERIES), linear_head=wide_head))
    )


@pytest.mark.parametrize("make", OVER_FEATURES)
def test_a_task_without_open_features_scores_all_images_alike(make: Callable[[], Score]) -> None:
    none = torch.zeros(8, 2)
    fitted = make().fit(Outputs(none, none, OWN.labels, linear_head=HEAD))
    score = fitted(Outputs(torch.zeros(3, 2), torch.zeros(3, 2), linear_head=HEAD))
    assert torch.isfinite(score).all()
    assert len(torch.unique(score)) == 1


def test_vim_with_more_features_than_images_keeps_a_residual() -> None:
    features = torch.randn(10, 40, generator=torch.Generator().manual_seed(0))
    head = torch.ones(2, 40), torch.zeros(2)
    score = ViM().fit(Outputs(torch.ones(10, 2), features, linear_head=head))
    assert score.outside_.shape == (40, 35)
    assert 0 < score.alpha_ < 10


def test_nearest_neighbours() -> None:
    bank = Outputs(torch.zeros(3, 2), torch.tensor([[1, 0], [0, 1], [0.6, 0.8]]))
    queries = Outputs(torch.zeros(3, 2), torch.tensor([[2, 0], [-1, 0], [3, 4.1]]))
    first, second = (KNN(k).fit(bank)(queries).square() for k in (1, 2))
    assert first.tolist() == pytest.approx([0, 2, 0.0001], abs=5e-5)
    assert second.tolist() == pytest.approx([0.8, 3.2, 0.3859], abs=5e-5)


def test_vim_penalises_features_off_the_principal_plane() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 3, generator=generator) * torch.tensor([3.0, 2.0, 0.01])
    weight, bias = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]), torch.zeros(2)
    score = ViM(dimensions=2).fit(Outputs(features @ weight.T, features, linear_head=(weight, bias)))
    on, off = torch.tensor([[3.0, 0, 0]]), torch.tensor([[3.0, 0, 1.0]])
    energy = Energy()(Outputs(on @ weight.T)).item()
    assert Energy()(Outputs(off @ weight.T)).item() == pytest.approx(energy)
    assert score(Outputs(on @ weight.T, on)).item() == pytest.approx(energy, abs=0.5)
    drop = score(Outputs(on @ weight.T, on)) - score(Outputs(off @ weight.T, off))
    assert drop.item() == pytest.approx(score.alpha_, rel=0.05)


def test_react_is_the_energy_of_clipped_features() -> None:
    weight, bias = torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0.1, 0.2])
    features = torch.arange(20.0).view(10, 2) / 10
    score = ReAct(percentile=0.5).fit(Outputs(torch.zeros(10, 2), features))
    assert score.limit_ == pytest.approx(0.95)
    query = torch.tensor([[0.5, 1.9]])
    by_hand = torch.logsumexp(torch.tensor([[0.5 + 2 * 0.95 + 0.1, 0.25 - 0.95 + 0.2]]), 1)
    outputs = Outputs(torch.zeros(1, 2), query, linear_head=(weight, bias))
    assert score(outputs).item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_scaling_changes_msp_but_not_max_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = torch.randn(300, 3, generator=generator), torch.randn(300, 3, generator=generator) - 0.5
    own[:, 0] += 2

    def auc(score: Score, scale: float) -> float:
        blocks = [[scale * own, own], [scale * other, other]]
        return auc_grid(blocks, lambda block: score(Outputs(block)))[0][1]

    assert auc(MaxLogit(), 0.2) == pytest.approx(auc(MaxLogit(), 5))
    assert auc(MSP(), 0.2) != pytest.approx(auc(MSP(), 5), abs=1e-3)


def test_undeclared_needs_are_errors() -> None:
    with pytest.raises(UserError, match=r"features for each task.*needs = \('features',\)"):
        Mahalanobis().fit(LOGITS)
    with pytest.raises(UserError, match="linear_head"):
        ReAct().fit(OWN)(OWN)
    with pytest.raises(UserError, match="labels"):
        Mahalanobis().fit(OWN.only(["features"]))
