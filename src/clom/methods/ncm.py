"""NCM: nearest class mean on frozen features, as in iCaRL (Rebuffi et al. 2017), but over all training images.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.nearest_mean import mean_directions
from clom.methods.families.base import LearnedTask
from clom.methods.families.frozen import FrozenMethod, more_rows
from clom.nets import NetSettings
from clom.settings import Settings


class NcmSettings(Settings):
    """NCM has no settings."""


class Ncm(FrozenMethod):
    """Predicts the class with the nearest mean direction. Means of learned classes never change."""

    name = "ncm"
    settings_type = NcmSettings
    exact_memory = True
    class_buffers = scoring_buffers = ("means",)

    def __init__(self, net: NetSettings, settings: NcmSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("means", torch.empty(0, self.backbone.n_features))

    def _open_task(self, task: LearnedTask) -> None:
        self.means = more_rows(self.means, task.n_classes)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        features = self.embed(task.train.pixels, context)
        self.means[-task.n_classes :] = mean_directions(features, task.train.labels, task.n_classes)

    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        return self.near(features, rows)

    def n_parameters(self) -> int:
        return super().n_parameters() + self.means.numel()
