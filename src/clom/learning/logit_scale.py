"""Temperature scaling: the factor that turns scores into calibrated log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST, _HIGHEST, _HALVINGS = -12.0, 12.0, 80


def fit_logit_scale(scores: Tensor, labels: Tensor) -> float:
    """The inverse temperature beta for which `softmax(beta * scores)` best predicts the labels of held-out images.

    On a few images all predictions may be correct, which would make beta infinite: as in Platt scaling, the target of
    the true class is (n + 1) / (n + 2) for n images, and the other classes share the rest. One positive factor for all
    classes never changes a prediction.
    """
    if not len(labels) or scores.shape[1] < 2:
        return 1.0
    scores = scores.double()
    smoothing = 1 / (len(labels) + 2)
    target = torch.full_like(scores, smoothing / (scores.shape[1] - 1))
    target.scatter_(1, labels[:, None], 1 - smoothing)

    def slope(factor: float) -> float:
        """Derivative of the cross-entropy, which is convex in the factor: it increases through zero."""
        expected = (factor * scores).softmax(1)
        return float(((expected - target) * scores).sum())

    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(2.0**middle) < 0 else (low, middle)
    return float(2.0**low)
