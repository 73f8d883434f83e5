"""How sure a score makes one: the factor that turns scores into log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST, _HIGHEST, _HALVINGS = -12.0, 12.0, 80


def fit_sharpness(scores: Tensor, labels: Tensor) -> float:
    """The factor beta for which `softmax(beta * scores)` predicts the labels of held-out images best.

    Few images are all easily right, which would make any doubt impossible: as in Platt's scaling, the right class is
    aimed at with (n + 1) / (n + classes) only, n images being there of each class. One positive factor for all
    classes never changes an answer.
    """
    if not len(labels) or scores.shape[1] < 2:
        return 1.0
    n_classes = scores.shape[1]
    per_class = len(labels) / len(torch.unique(labels))
    scores = scores.double()
    target = torch.full_like(scores, 1 / (per_class + n_classes))
    target.scatter_(1, labels[:, None], (per_class + 1) / (per_class + n_classes))

    def slope(factor: float) -> float:
        """Of the cross-entropy, which is convex in the factor: from below zero to above."""
        expected = (factor * scores).softmax(1)
        return float(((expected - target) * scores).sum())

    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(2.0**middle) < 0 else (low, middle)
    return float(2.0**low)
