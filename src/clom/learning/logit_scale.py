"""How sure a score makes one: the factor that turns scores into log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST, _HIGHEST, _HALVINGS = -12.0, 12.0, 80


def fit_logit_scale(scores: Tensor, labels: Tensor) -> float:
    """The factor beta for which `softmax(beta * scores)` predicts the labels of held-out images best.

    Few images are easily all right, which would leave no room for doubt: as in Platt's scaling, the right class is
    aimed at with (n + 1) / (n + 2) only, n being the number of images, and the rest is shared by the others. One
    positive factor for all classes never changes an answer.
    """
    if not len(labels) or scores.shape[1] < 2:
        return 1.0
    scores = scores.double()
    doubt = 1 / (len(labels) + 2)
    target = torch.full_like(scores, doubt / (scores.shape[1] - 1))
    target.scatter_(1, labels[:, None], 1 - doubt)

    def slope(factor: float) -> float:
        """Of the cross-entropy, which is convex in the factor: from below zero to above."""
        expected = (factor * scores).softmax(1)
        return float(((expected - target) * scores).sum())

    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(2.0**middle) < 0 else (low, middle)
    return float(2.0**low)
