"""ROW, by hand."""

from __future__ import annotations

import pytest
import torch

from clom.ood.predictors.base import TaskOutputs
from clom.ood.predictors.other_heads import OtherHeads
from clom.ood.predictors.row import Row, RowWithoutSamples, log_shares, stored_heads
from clom.ood.predictors.statistics import TaskStatistics, packed

LOGITS = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.5, 0.0]])]


def two_tasks(first: float, second: float) -> tuple[list[TaskStatistics], list[TaskOutputs]]:
    """Unit covariances and one class mean at 0: the coefficients are the inverse norms of the features."""
    own = TaskStatistics(torch.zeros(1, 2, 1), packed(torch.eye(1)), torch.ones(4, 2))
    outputs = [
        TaskOutputs(block, torch.tensor([[[1 / value]]])) for block, value in zip(LOGITS, (first, second), strict=True)
    ]
    return [own, own], outputs


def test_row_by_hand() -> None:
    """Within-task logits (2, 0), (.5, 0) at T = 2; other heads (3, 1, 0), (1, .5, 2); coefficients 10 and 2.5."""
    statistics, outputs = two_tasks(10.0, 2.5)
    predictor = Row(temperature=2.0).fit(statistics, None)
    others = [torch.tensor([3.0, 1.0, 0.0]), torch.tensor([1.0, 0.5, 2.0])]
    predictor.learned = stored_heads(OtherHeads([torch.zeros(3, 1)] * 2, others, rotations=1))
    assert predictor(outputs).exp()[0].tolist() == pytest.approx([0.3676, 0.0328], abs=1e-4)


def test_row_without_samples_by_hand() -> None:
    statistics, outputs = two_tasks(10.0, 2.5)
    found = RowWithoutSamples(temperature=2.0).fit(statistics, None)(outputs).exp()[0]
    assert found.tolist() == pytest.approx([0.7311 * 0.8, 0.5622 * 0.2], abs=1e-4)


def test_the_covariance_is_mixed_with_the_unit_matrix() -> None:
    own = TaskStatistics(torch.zeros(1, 1, 1), packed(torch.full((1, 1), 6.0)), torch.ones(4, 2))
    outputs = [TaskOutputs(torch.zeros(1, 1), torch.full((1, 1, 1), value)) for value in (1.0, 3.0)]
    plain = TaskStatistics(torch.zeros(1, 1, 1), packed(torch.eye(1)), torch.ones(4, 2))
    found = RowWithoutSamples().fit([own, plain], None)(outputs).exp()[0]
    first, second = (0.8 * 6 + 0.2) ** 0.5, 1 / 3
    assert found.tolist() == pytest.approx([first / (first + second), second / (first + second)])


def test_shares_sum_to_one() -> None:
    assert log_shares(torch.tensor([[10.0, 2.5]])).exp().tolist() == [pytest.approx([0.8, 0.2])]
