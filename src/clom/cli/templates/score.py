"""An out-of-distribution score of my own.

Check it:  python my_score.py
Use it:    clom scores runs/SOME-RUN --score my_score.py:MyScore
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

import clom


@clom.register_score("my-score")
class MyScore(clom.Score):
    """Minus the distance to the mean feature of the task's training images."""

    # What it reads besides the block: "features", "labels" (in fit alone), "linear_head", "odin". Scores that need
    # something a method does not offer are left out for that method.
    needs = ("features",)

    def fit(self, own: clom.Outputs) -> Self:
        """Describe the task's own training images; scores of the block alone need no fit."""
        self.mean_ = own.need_features().mean(0)
        return self

    def __call__(self, outputs: clom.Outputs) -> Tensor:
        """One number per image; high = belongs to the task. The block is `outputs.block`, [images, classes]."""
        distances: Tensor = (outputs.need_features() - self.mean_).norm(dim=1)
        return -distances


if __name__ == "__main__":
    from clom.testing import check_score

    check_score(MyScore)
    print("my-score keeps the contract of a score.")
