"""Random rows by class: stratified hold-out, and class-balanced selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clom.data.images import DataSet, Images

HELD_OUT_SEED = 5
"""Of the draw of `with_held_out_tests`: the same images for every method, setting and seed."""
Rows = tuple[Tensor, Tensor]
"""Row indices of one class for training and held out, both in random order."""


def hold_out(
    labels: Tensor,
    n_classes: int,
    count: Callable[[int], int],
    randomness: torch.Generator,
    limit: int | None = None,
) -> list[Rows]:
    """For each class, hold out `count(n)` of its n rows; with `limit`, at most `limit` rows of a class are used.

    One permutation is drawn per class, so the order of the rows depends neither on `count` nor on `limit`.
    """
    drawn = []
    for label in range(n_classes):
        rows = (labels == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=randomness).to(rows.device)][:limit]
        held = count(len(rows))
        drawn.append((rows[held:], rows[:held]))
    return drawn


def share_of(share: float) -> Callable[[int], int]:
    """A `count` for `hold_out`: this share of a class, at least one row, but never all of them."""
    return lambda n: max(0, min(max(1, round(share * n)), n - 1))


def split_images(images: Images, drawn: Sequence[Rows]) -> tuple[Images, Images]:
    """The training and the held-out images of all classes, in their original order."""
    kept, held = split_rows(drawn)
    return images[kept], images[held]


def split_rows(drawn: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """The rows for training and the held-out rows of all classes, each in ascending order."""
    kept, held = (torch.cat([rows[part] for rows in drawn]).sort().values for part in (0, 1))
    return kept, held


def balanced_rows(labels: Tensor, limit: int, randomness: torch.Generator) -> Tensor:
    """At most `limit` random rows, equally many of each class as far as it has them, on the device of `labels`."""
    shuffled = torch.randperm(len(labels), generator=randomness)
    classes = labels.cpu()[shuffled]
    rank = torch.empty_like(shuffled)  # of each row within its class
    for label in torch.unique(classes):
        rank[classes == label] = torch.arange(int((classes == label).sum()))
    return shuffled[rank.argsort(stable=True)[:limit]].to(labels.device)


def with_held_out_tests(images: DataSet, share: float, limit: int | None = None) -> DataSet:
    """Replace the test images by a share of the training images of each class, which are then not trained on.

    For choosing settings without looking at test images. With `limit`, at most that many images of a class are used,
    held out and trained on together.
    """
    randomness = torch.Generator().manual_seed(HELD_OUT_SEED)
    drawn = hold_out(images.train.labels, len(images.class_names), share_of(share), randomness, limit)
    train, held = split_images(images.train, drawn)
    return replace(images, train=train, test=held)
