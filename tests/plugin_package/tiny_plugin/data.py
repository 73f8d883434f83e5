"""A data set: gratings, of which the class is the direction."""

from __future__ import annotations

import math

import torch

from clom import DataSet, Images

DIRECTIONS = ("level", "rising", "steep", "upright", "falling")


def gratings() -> DataSet:
    """Five classes of 8 x 8 pixels, in grey."""
    return DataSet("gratings", DIRECTIONS, _drawn(20, seed=0), _drawn(8, seed=1))


def _drawn(per_class: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(DIRECTIONS)).repeat_interleave(per_class)
    angles = labels * math.pi / len(DIRECTIONS) + 0.1 * torch.randn(len(labels), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    along = angles.cos()[:, None, None] * rows + angles.sin()[:, None, None] * columns
    phase = 6.3 * torch.rand(len(labels), 1, 1, generator=generator)
    return Images((127.5 + 120 * torch.sin(1.2 * along + phase)).to(torch.uint8)[:, None], labels)
