"""Herding of exemplars, and nearest-mean-of-exemplars classification (iCaRL, Rebuffi et al. 2017)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Herding = Literal["rank", "exclude"]


def herd(features: Tensor, count: int, variant: Herding = "exclude", most_steps: int = 1000) -> Tensor:
    """Indices of the `count` rows whose running mean stays closest to the mean direction, best first.

    `rank`, as in the original code: an image may be picked again, which moves the target but stores nothing, so fewer
    than `count` may be returned. `exclude` picks every image at most once and always returns `count` if there are
    enough.
    """
    directions = F.normalize(features.cpu().double())  # sequential picks gain nothing from a GPU
    mean = directions.mean(0)
    target, chosen = mean.clone(), list[int]()
    free = torch.ones(len(features), dtype=torch.bool)
    for _ in range(most_steps if variant == "rank" else len(features)):
        if len(chosen) >= min(count, len(features)):
            break
        similarity = directions @ target
        if variant == "exclude":
            similarity[~free] = -torch.inf
        pick = int((similarity == similarity.max()).nonzero()[0])  # ties: the first, on every machine
        if free[pick]:
            chosen.append(pick)
        free[pick] = False
        target += mean - directions[pick]
    return torch.tensor(chosen, dtype=torch.int64).to(features.device)


def mean_directions(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """The normalised mean of each class's normalised features, `[classes, d]`."""
    directions = F.normalize(features)
    return F.normalize(torch.stack([directions[labels == label].mean(0) for label in range(n_classes)]))


def neg_squared_distance(features: Tensor, means: Tensor) -> Tensor:
    """Negative squared distance of every normalised feature vector to every mean, `[n, classes]`."""
    return -torch.cdist(F.normalize(features), means).pow(2)
