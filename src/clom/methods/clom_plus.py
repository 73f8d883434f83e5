"""CLOM+: CLOM with what is not in the paper, each part a setting that CLOM and its relatives have as well.

| addition | settings |
|---|---|
| outlier exposure: stored samples show a task what does not belong to it | `learning.outliers` |
| a task predictor instead of the largest calibrated logit | `predictor: fusion` |
| a rotation cross-entropy loss beside the contrastive one | `learning.cross_entropy` |
| one view of each image per step, where images are many for the budget | `learning.order: single` |
| horizontal-flip test-time augmentation, for data that is flipped in training | `flip_tta` |
| units appended to layers that have too few left for another task | `attention.growth` |

The masks, the contrastive loss, the rotation classes and the zero forgetting are CLOM's.

Tested by tests/learning/learners/test_outliers.py.
"""

from __future__ import annotations

from clom.methods.clom import Clom


class ClomPlus(Clom):
    """CLOM with our additions; recipes say which of them an experiment uses, chosen on held-out training images."""

    name = "clom+"
