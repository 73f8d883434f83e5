"""Outlier exposure: a task also learns from samples of earlier tasks what does not belong to it (not in the paper).

In step 1 every rotation of every class of the samples is one more class of the contrastive loss, so that their features
stay apart from those of the task's own classes. In step 2 they are the examples of an additional output, "another
task", which is then subtracted from all others: the task's scores are log-odds against it. What earlier tasks learned
does not change. Hendrycks et al. 2019 introduced outlier exposure; Kim et al. 2022 (MORE) use stored samples for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.views import Augmentation, Order, classifier_views, contrastive_views
from clom.nets.data_parallel import split_over_ranks

_HEAD_VIEWS = 4
"""Augmented views of each sample, in all rotations, that the head is fitted to."""


def outlier_views(
    outliers: Images,
    count: int,
    augmentation: Augmentation,
    randomness: torch.Generator,
    rotations: int,
    order: Order,
) -> tuple[Tensor, Tensor]:
    """Views of `count` random outliers, as `contrastive_views` makes them, and their rotation classes."""
    drawn = torch.randint(len(outliers), (count,), generator=randomness).to(outliers.labels.device)
    labels, n_classes = outliers.labels[drawn], int(outliers.labels.max()) + 1
    return contrastive_views(
        outliers.pixels[drawn], labels, n_classes, augmentation, randomness, rotations=rotations, order=order
    )


def outlier_features(
    features_of: Callable[[Tensor], Tensor],
    outliers: Images,
    augmentation: Augmentation,
    rotations: int,
    randomness: torch.Generator,
) -> Tensor:
    """Features of a few augmented views of every outlier in all rotations, `[n, d]`."""
    found = []
    for _ in range(_HEAD_VIEWS):
        images, _ = classifier_views(outliers.pixels, outliers.labels, 1, augmentation, randomness, rotations)
        found.append(split_over_ranks(features_of, images.contiguous(memory_format=torch.channels_last)))
    return torch.cat(found)
