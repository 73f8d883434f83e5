"""The comparison on photos compares what it says: the same photos for all, none of them in both parts."""

from __future__ import annotations

import pytest
import torch

from benchmarks.photos import Photos, joint_probe, line, outcome
from clom.data.images import Images


def photos(n: int = 12) -> Photos:
    """Two classes whose features are far apart in each rotation."""
    labels = torch.arange(n) % 2
    features = torch.eye(2)[labels][:, None].expand(n, 4, 2) + 0.01 * torch.rand(n, 4, 2)
    return Photos(("a", "b"), Images(torch.zeros(n, 3, 1, 1, dtype=torch.uint8), labels), features)


def test_every_photo_is_in_one_part() -> None:
    task = photos()
    train, held, test = task.rows(seed=1, per_class=5)
    assert sorted(torch.cat([train, held, test]).tolist()) == list(range(12))
    for part, count in ((train, 4), (held, 1), (test, 1)):
        assert task.images.labels[part].bincount().tolist() == [count, count]
    assert not torch.equal(train, task.rows(seed=2, per_class=5)[0])


def test_an_outcome_by_hand() -> None:
    """Two tasks of two classes: 2 of 3 photos are right in all classes, all of them within their task."""
    first = [torch.tensor([[3.0, 0], [1, 0]]), torch.tensor([[0.0, 1], [2, 0]])]
    second = [torch.tensor([[0.0, 0]]), torch.tensor([[0.0, 1]])]
    found = outcome([first, second], [torch.tensor([0, 0]), torch.tensor([1])])
    assert found.cil == pytest.approx(200 / 3)
    assert found.til == 100
    assert "66.7" in line("a system", [found])


def test_the_probe_learns_what_is_easy() -> None:
    other = photos()
    other = Photos(("c", "d"), other.images, other.features - 2)
    assert joint_probe([photos(), other], seed=0, per_class=5).cil == 100
