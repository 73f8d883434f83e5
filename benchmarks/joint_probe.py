"""A joint linear probe: logistic regression on the features of all classes at once, a reference for photos."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clom.learning.heads import HeadSettings, solve_head
from clom.learning.loop import generator

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
Labelled = tuple[Tensor, Tensor]
"""Features and class numbers."""


def joint_probe(train: Sequence[Labelled], test: Sequence[Labelled], n_classes: int, seed: int) -> float:
    """Accuracy in percent. The L2 penalty is chosen on a fifth of the training photos; then all are used."""
    features, labels = (torch.cat([part[at] for part in train]) for at in (0, 1))
    held = torch.randperm(len(labels), generator=generator(seed, "probe")) % 5 == 0

    def right(l2: float) -> float:
        head = solve_head(features[~held], labels[~held], n_classes, HeadSettings(l2=l2))
        return float((head(features[held]).argmax(1) == labels[held]).double().mean())

    head = solve_head(features, labels, n_classes, HeadSettings(l2=max(PENALTIES, key=right)))
    return 100 * float(torch.cat([head(own).argmax(1) == truth for own, truth in test]).double().mean())
