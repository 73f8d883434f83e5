"""Herding and nearest means, with the numbers of the iCaRL and Mnemonics specifications."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clom.learning.nearest_mean import Herding, herd, mean_directions, neg_squared_distance


def at(*degrees: float) -> Tensor:
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], 1)


@pytest.mark.parametrize(
    ("features", "count", "variant", "expected"),
    [
        pytest.param(at(0, 10, 30, 60, 90), 5, "rank", [2, 3, 1, 4, 0], id="1a-rank"),
        pytest.param(at(0, 10, 30, 60, 90), 5, "exclude", [2, 3, 1, 4, 0], id="1a-exclude"),
        pytest.param(at(20, 40, 90, 130, 160), 3, "rank", [2, 0, 4], id="1b-rank"),
        pytest.param(at(20, 40, 90, 130, 160), 3, "exclude", [2, 1, 4], id="1b-exclude"),
        pytest.param(torch.tensor([[3.0, 0], [0, 1], [2, 2], [1, 0]]), 4, "rank", [2, 0, 1], id="1c-rank-ends"),
        pytest.param(torch.tensor([[3.0, 0], [0, 1], [2, 2], [1, 0]]), 4, "exclude", [2, 0, 1, 3], id="1c-exclude"),
        pytest.param(at(0, 10, 40, 80, 100), 3, "rank", [2, 3, 0], id="mnemonics-3"),
        pytest.param(at(0, 10, 40, 80, 100), 3, "exclude", [2, 3, 0], id="mnemonics-3-exclude"),
    ],
)
def test_herding(features: Tensor, count: int, variant: Herding, expected: list[int]) -> None:
    assert herd(features, count, variant).tolist() == expected


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(0, 12), st.sampled_from(["rank", "exclude"]))
def test_a_shorter_list_is_a_prefix_of_a_longer_one(seed: int, n: int, count: int, variant: Herding) -> None:
    features = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    longer, shorter = herd(features, 12, variant), herd(features, count, variant)
    assert shorter.tolist() == longer[: len(shorter)].tolist()
    assert len(set(longer.tolist())) == len(longer)
    if variant == "exclude":
        assert len(shorter) == min(count, n)


def test_no_exemplar_is_an_empty_list() -> None:
    assert herd(at(0, 10), 0).shape == (0,)


def test_nearest_mean() -> None:
    features = torch.tensor([[1.0, 0], [0.8, 0.6], [0, 1], [0.6, 0.8]])
    means = mean_directions(features, torch.tensor([0, 0, 1, 1]), 2)
    torch.testing.assert_close(means, torch.tensor([[0.948683, 0.316228], [0.316228, 0.948683]]), atol=1e-6, rtol=0)
    queries = torch.tensor([[2.0, 1.0], [1.0, 1.2]])
    assert neg_squared_distance(queries, means).argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(neg_squared_distance(100 * queries, means), neg_squared_distance(queries, means))


def test_means_are_normalised() -> None:
    # Unnormalised means (1, 0) and (.3, .3) would predict class 1 for the raw query; normalised ones predict class 0.
    means = mean_directions(torch.tensor([[1.0, 0.0], [0.3, 0.3]]), torch.tensor([0, 1]), 2)
    torch.testing.assert_close(means.norm(dim=1), torch.ones(2))
    assert neg_squared_distance(torch.tensor([[0.5, 0.1]]), means).argmax(1).tolist() == [0]


def test_a_zero_feature_vector_is_equally_far_from_every_mean() -> None:
    scores = neg_squared_distance(torch.zeros(1, 2), mean_directions(torch.eye(2), torch.tensor([0, 1]), 2))
    torch.testing.assert_close(scores, torch.tensor([[-1.0, -1.0]]))
