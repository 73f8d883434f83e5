"""The logit scale, compared with closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from clom.learning.logit_scale import fit_logit_scale


@pytest.mark.parametrize("n", [1, 12, 500])
def test_all_correct_by_the_same_margin(n: int) -> None:
    """sigmoid(2 beta) = (n + 1) / (n + 2), so 2 beta = log(n + 1)."""
    scores = torch.tensor([[1.0, -1.0]]).repeat(n, 1)
    assert fit_logit_scale(scores, torch.zeros(n, dtype=torch.int64)) == pytest.approx(math.log(n + 1) / 2)


def test_a_quarter_wrong() -> None:
    """3 of 4 images are correct: the mean target is (3 * 5/6 + 1 * 1/6) / 4 = 2/3, so 2 beta = log 2."""
    scores = torch.tensor([[1.0, -1.0]]).repeat(4, 1)
    assert fit_logit_scale(scores, torch.tensor([0, 0, 0, 1])) == pytest.approx(math.log(2) / 2)


def test_the_scale_of_the_scores_does_not_matter() -> None:
    scores, labels = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 4
    scores[torch.arange(30), labels] += 1.5
    assert 100 * fit_logit_scale(100 * scores, labels) == pytest.approx(fit_logit_scale(scores, labels), rel=1e-6)


def test_worse_than_chance_gives_a_scale_near_zero() -> None:
    scores = torch.tensor([[1.0, -1.0]]).repeat(4, 1)
    assert fit_logit_scale(scores, torch.ones(4, dtype=torch.int64)) < 1e-3


def test_nothing_to_fit() -> None:
    assert fit_logit_scale(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)) == 1.0
    assert fit_logit_scale(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)) == 1.0
