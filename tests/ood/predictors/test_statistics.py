"""Statistics of a task, by hand."""

from __future__ import annotations

import pytest
import torch

from clom.ood.predictors.base import TaskOutputs
from clom.ood.predictors.statistics import (
    USUAL,
    Gaussians,
    inverse_mahalanobis,
    measure,
    packed,
    rotation_mahalanobis,
    unpacked,
)

# Two rotations, two classes, two features. The deviations from the means are (+-1, 0) and (0, +-2) in turn.
FEATURES = torch.tensor(
    [
        [[1.0, 0.0], [0.0, 12.0]],
        [[-1.0, 0.0], [0.0, 8.0]],
        [[10.0, 2.0], [21.0, 0.0]],
        [[10.0, -2.0], [19.0, 0.0]],
    ]
)
LABELS = torch.tensor([0, 0, 1, 1])
BLOCK = torch.tensor([[3.0, 0.0], [5.0, 0.0], [0.0, 1.0], [2.0, 1.0]])


def test_means_and_covariance_by_hand() -> None:
    own = TaskOutputs(BLOCK, FEATURES)
    found = measure(own, LABELS, own.rows(slice(0, 0)), LABELS[:0])
    assert found.means.tolist() == [[[0.0, 0.0], [10.0, 0.0]], [[0.0, 10.0], [20.0, 0.0]]]
    # Of the eight deviations four are (+-1, 0) and four (0, +-2).
    assert unpacked(found.covariance).tolist() == [[0.5, 0.0], [0.0, 2.0]]
    assert found.n_bytes == 4 * (8 + 3 + 2 * len(USUAL))


def test_usual_scores_are_those_of_held_out_images() -> None:
    own, held_out = TaskOutputs(BLOCK, FEATURES), TaskOutputs(BLOCK[[0, 2]], FEATURES[[0, 2]])
    found = measure(own, LABELS, held_out, LABELS[[0, 2]])
    assert [float(value) for value in found.usual_of("largest logit")] == [2.0, 1.0]
    assert float(found.usual_of("typical logit")[0]) == 2.0
    assert found.standardised("largest logit", torch.tensor([4.0])).tolist() == [2.0]
    without = measure(own, LABELS, own.rows(slice(0, 0)), LABELS[:0])
    assert float(without.usual_of("largest logit")[0]) == pytest.approx(2.75)
    assert float(without.usual_of("typical logit")[0]) == pytest.approx(2.5), "of the true class, not the largest"


def test_distances_by_hand() -> None:
    means = torch.tensor([[[0.0, 0.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]])
    exact = Gaussians(means, torch.tensor([[4.0, 0.0], [0.0, 1.0]]), shrinkage=0.0)
    distances = exact.distances(torch.tensor([[[2.0, 1.0], [0.0, 3.0]]]))
    # Rotation 0: (2, 1) is 1 + 1 from (0, 0) and 1 + 1 from (4, 0). Rotation 1: (0, 3) is 9 and 1 away.
    assert distances[0].tolist() == [pytest.approx([2.0, 2.0]), pytest.approx([9.0, 1.0])]
    assert rotation_mahalanobis(distances).tolist() == pytest.approx([-1.5])
    assert inverse_mahalanobis(distances).tolist() == pytest.approx([0.5])
    # Halfway to the identity times the mean variance 2.5: (3.25, 1.75). Halfway to the unit matrix: (2.5, 1).
    half = Gaussians(means, torch.tensor([[4.0, 0.0], [0.0, 1.0]]), shrinkage=0.5)
    assert half.unrotated(torch.tensor([[[2.0, 1.0], [0.0, 3.0]]]))[0, 0].item() == pytest.approx(4 / 3.25 + 1 / 1.75)
    unit = Gaussians(means, torch.tensor([[4.0, 0.0], [0.0, 1.0]]), shrinkage=0.5, unit=True)
    assert unit.unrotated(torch.tensor([[[2.0, 1.0], [0.0, 3.0]]]))[0, 0].item() == pytest.approx(4 / 2.5 + 1)


def test_a_triangle_is_half_of_a_symmetric_matrix() -> None:
    root = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    matrix = root @ root.T
    assert len(packed(matrix)) == 15
    assert torch.equal(unpacked(packed(matrix)), matrix.tril() + matrix.tril(-1).T)
    with pytest.raises(ValueError, match="14"):
        unpacked(torch.zeros(14))
