"""Metrics of OOD detection: by hand, with ties, and compared with scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from clom.evaluation.metrics import (
    auc,
    aupr,
    fpr95,
    mean_of_pairs,
    pair_grid,
    rejection,
)

FEW_VALUES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40).map(torch.tensor)


def scores(*values: float) -> Tensor:
    return torch.tensor(values)


def test_auc_by_hand() -> None:
    assert auc(scores(0.9, 0.8, 0.4), scores(0.7, 0.3)) == pytest.approx(5 / 6)
    assert auc(scores(1, 1), scores(1, 0)) == pytest.approx(0.75)


@given(FEW_VALUES, FEW_VALUES)
@settings(max_examples=50, deadline=None)
def test_auc_equals_that_of_scikit_learn(own: Tensor, other: Tensor) -> None:
    truth = torch.cat([torch.ones(len(own)), torch.zeros(len(other))])
    assert auc(own, other) == pytest.approx(roc_auc_score(truth.numpy(), torch.cat([own, other]).numpy()))
    assert auc(own, other) == pytest.approx(auc(-other, -own))


def test_auc_mixture_law() -> None:
    """Pooling other sets weights them by size."""
    randomness = torch.Generator().manual_seed(0)
    own, first = (torch.randn(50, generator=randomness) + shift for shift in (1.0, 0.0))
    second = torch.randn(10, generator=randomness) + 0.8
    separate = auc(own, first), auc(own, second)
    assert auc(own, torch.cat([first, second])) == pytest.approx((50 * separate[0] + 10 * separate[1]) / 60)
    assert abs(auc(own, torch.cat([first, second])) - sum(separate) / 2) > 0.01


@pytest.mark.parametrize(("own", "other"), [([math.nan], [1.0]), ([1.0], [math.nan]), ([], [1.0]), ([1.0], [])])
def test_auc_of_no_scores_or_nan_is_an_error(own: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="without NaN"):
        auc(torch.tensor(own), torch.tensor(other))


def test_fpr95_by_hand() -> None:
    # Twenty own images: nineteen must pass, so the threshold is the second smallest score, 2.
    own = torch.arange(1.0, 21.0)
    assert fpr95(own, scores(1.9, 2.0, 2.1, 0.0)) == pytest.approx(2 / 4)
    # Ten own images: 9.5 of them must pass, so all ten.
    assert fpr95(torch.arange(1.0, 11.0), scores(0.9, 1.0, 5.0)) == pytest.approx(2 / 3)
    assert fpr95(scores(3.0), scores(1.0, 3.0)) == pytest.approx(0.5)
    # One outlier in twenty does not count.
    assert fpr95(torch.cat([torch.full((19,), 5.0), scores(-100.0)]), scores(4.9, -50.0)) == 0.0


def test_fpr95_counts_ties_at_the_threshold_as_passing() -> None:
    assert fpr95(torch.ones(20), scores(1.0, 1.0, 0.9)) == pytest.approx(2 / 3)


def test_fpr95_depends_on_which_side_is_positive() -> None:
    """AUC does not, FPR95 and AUPR do."""
    randomness = torch.Generator().manual_seed(0)
    own, other = torch.randn(200, generator=randomness) + 1, 2 * torch.randn(100, generator=randomness)
    assert auc(own, other) == pytest.approx(auc(-other, -own))
    assert abs(fpr95(own, other) - fpr95(-other, -own)) > 0.1
    assert abs(aupr(own, other) - aupr(-other, -own)) > 0.05


@given(FEW_VALUES, FEW_VALUES)
@settings(max_examples=50, deadline=None)
def test_fpr95_is_the_lowest_rate_that_accepts_enough(own: Tensor, other: Tensor) -> None:
    allowed = [t for t in own.tolist() if float((own >= t).double().mean()) >= 0.95 - 1e-12]
    assert fpr95(own, other) == pytest.approx(min(float((other >= t).double().mean()) for t in allowed))


def test_aupr_by_hand() -> None:
    # Ranked 4+ 3- 2+ 1-: precision 1 at recall 1/2, 2/3 at recall 1.
    assert aupr(scores(4, 2), scores(3, 1)) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    # With the others as positive, ranked in reverse: 1- 2+ 3- 4+.
    assert aupr(-scores(3, 1), -scores(4, 2)) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert aupr(scores(1, 1, 1), scores(1)) == pytest.approx(3 / 4)  # all tied: the share of positives
    assert aupr(scores(5, 4), scores(1, 2)) == 1.0


def test_grid_of_pairs() -> None:
    # Model 0 scores its own images 5 and 4 and the others 1; model 1 cannot separate them.
    by_test = [[scores(5, 4), scores(1, 1)], [scores(1), scores(1)]]
    assert pair_grid(by_test, auc) == [[1.0, 1.0], [0.5, 1.0]]
    assert pair_grid(by_test, fpr95) == [[1.0, 0.0], [1.0, 1.0]]
    assert mean_of_pairs(pair_grid(by_test, fpr95), alone=0.0) == pytest.approx(0.5)
    assert mean_of_pairs([[1.0]], alone=0.0) == 0.0


# --- rejection -----------------------------------------------------------------------------------------------------


def test_rejection_by_hand() -> None:
    """Two of nine scores are below the threshold at 0.3: (2 + 1) / (9 + 1) does not exceed the rate, 4/10 does."""
    report = rejection(torch.arange(9.0), scores(0, 1, 2, 3), {"far": scores(-5, 0.5, 7), "near": scores(9)}, 0.3)
    assert (report.wanted, report.threshold) == (0.3, 2.0)
    assert report.own == pytest.approx(2 / 4)
    assert report.external == {"far": pytest.approx(2 / 3), "near": 0.0}
