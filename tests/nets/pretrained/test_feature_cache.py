"""Features are computed once per photo and view."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from clom.nets.pretrained.feature_cache import FeatureCache


def test_only_new_photos_are_computed() -> None:
    calls: list[Tensor] = []

    def compute(pixels: Tensor) -> Tensor:
        calls.append(pixels)
        return pixels.float().flatten(1).sum(1, keepdim=True)

    photos = torch.arange(3 * 12, dtype=torch.uint8).view(3, 3, 2, 2)
    twice = torch.cat([photos, photos[:1]])
    cache = FeatureCache()
    expected = twice.float().flatten(1).sum(1, keepdim=True)
    assert torch.equal(cache(twice, "plain", compute), expected)
    assert sorted(row.sum().item() for row in calls[0]) == sorted(photo.sum().item() for photo in photos)
    assert torch.equal(cache(photos.flip(0), "plain", compute), expected[:3].flip(0))
    assert len(calls) == 1
    copy.deepcopy(cache)(photos[:1], "flipped", compute)
    assert [len(batch) for batch in calls] == [3, 1], "another view is another entry"
    assert cache(photos[:1], "flipped", compute).shape == (1, 1)
    assert len(calls) == 2, "a copy shares what is known"
    assert cache(photos[:0], "plain", compute).shape == (0, 1)
