"""NCM: nearest class mean on frozen features, as in iCaRL (Rebuffi et al. 2017), but over all training images.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.methods.families.frozen import FrozenMethod, FrozenSettings
from clom.nets import NetSettings


class NcmSettings(FrozenSettings):
    """NCM has no settings of its own."""


class Ncm(FrozenMethod):
    """Predicts the class with the nearest mean direction. Only `extend` changes the mean of a learned class."""

    name = "ncm"
    settings_type = NcmSettings
    exact_memory = True
    class_buffers = ("means", "counts")
    scoring_buffers = ("means",)

    def __init__(self, net: NetSettings, settings: NcmSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("means", torch.empty(0, self.backbone.n_features))

    def _fit(self, features: Tensor, rows: Tensor, tasks: Sequence[int]) -> None:
        """Means are those of directions, not normalised again, so that more photos can be averaged in."""
        directions = F.normalize(features, dim=2).mean(1)
        means = self.means.clone()
        counts = None if self.counts is None else self.counts.clone()
        for row in torch.unique(rows).tolist():
            new = directions[rows == row]
            before = 0 if counts is None else int(counts[row])
            means[row] = (before * means[row] + new.sum(0)) / (before + len(new))
            if counts is not None:
                counts[row] = before + len(new)
        self.means, self.counts = means, counts

    def _fit_cost(self) -> float:
        return 0.0

    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        return self.near(features, rows)

    def n_parameters(self) -> int:
        return super().n_parameters() + self.means.numel()
