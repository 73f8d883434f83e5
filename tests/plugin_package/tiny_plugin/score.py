"""A score: how far the best class is ahead of the mean."""

from __future__ import annotations

from torch import Tensor

import clom


class Margin(clom.Score):
    """The largest entry of the block minus the mean."""

    def __call__(self, outputs: clom.Outputs) -> Tensor:
        return outputs.block.amax(1) - outputs.block.mean(1)
