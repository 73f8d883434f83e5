"""WPTP and MORE, by hand."""

from __future__ import annotations

import pytest
import torch

from clom.ood.predictors.base import TaskOutputs
from clom.ood.predictors.factorised import More, Wptp, more_score
from clom.ood.predictors.statistics import TaskStatistics, packed


def test_wptp_by_hand() -> None:
    blocks = [torch.tensor([[1.0, 0.8]]), torch.tensor([[2.0, -1.0, 0.0]])]
    # Within: softmax over f / .1; the tasks' confidences at temperature 5 are .5100 and .4506: shares .5309 and .4691.
    within = [1 / (1 + 2.718281828**-2), 1.0]
    found = Wptp()([TaskOutputs(block) for block in blocks]).exp()[0]
    across = [float((block / 5).softmax(1).max()) for block in blocks]
    assert across == pytest.approx([0.5100, 0.4506], abs=1e-4)
    assert found.tolist() == pytest.approx([within[0] * 0.5309, within[1] * 0.4691], abs=1e-4)


def test_more_by_hand() -> None:
    # Softmax at temperature 2 of (3, 1) is .7311; of (1, .5) .5622. Distances 2 and 8 give the factors 10 and 2.5.
    first = more_score(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0, 5.0]]), 2.0)
    second = more_score(torch.tensor([[1.0, 0.5]]), torch.tensor([[9.0, 8.0]]), 2.0)
    assert first.exp().item() == pytest.approx(7.311, abs=1e-3)
    assert second.exp().item() == pytest.approx(0.5622 * 2.5, abs=1e-3)


def test_more_uses_the_root_of_the_squared_distance_of_the_unrotated_image() -> None:
    own = TaskStatistics(torch.tensor([[[0.0, 0.0]], [[50.0, 50.0]]]), packed(torch.eye(2)), torch.ones(4, 2))
    features = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])
    found = More(shrinkage=0.0).fit([own], None)([TaskOutputs(torch.tensor([[7.0]]), features)])
    assert found.exp().item() == pytest.approx(20 / 5)
