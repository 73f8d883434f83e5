"""The outputs of tasks' models that task predictors decide by.

Tested by tests/ood/predictors/test_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clom.errors import UserError

NEEDS = {
    "features": "features for each task",
    "statistics": "statistics of each task's own data",
    "samples": "stored samples",
    "score": "an OOD score for each task",
}
"""What a predictor may need besides the blocks, and the descriptions in messages."""


@dataclass(frozen=True)
class TaskOutputs:
    """The outputs of one task's model for images: its block, and the other fields if a predictor needs them."""

    block: Tensor
    """`[images, classes of the task]`"""
    features: Tensor | None = None
    """`[images, rotations, d]`, without features that the task's mask closes; rotation 0 is the image itself."""
    score: Tensor | None = None
    """The task's standardised OOD score, `[images]`."""

    def __len__(self) -> int:
        return len(self.block)

    def need_features(self) -> Tensor:
        """The features in float64."""
        if self.features is None:
            raise _missing("features")
        return self.features.double()

    def need_score(self) -> Tensor:
        if self.score is None:
            raise _missing("score")
        return self.score

    def rows(self, index: Tensor | slice) -> TaskOutputs:
        """The outputs for some of the images."""
        features, score = (None if part is None else part[index] for part in (self.features, self.score))
        return TaskOutputs(self.block[index], features, score)


def _missing(need: str) -> UserError:
    return UserError(f"A task predictor uses {NEEDS[need]} without declaring it: add needs = ({need!r},).")
