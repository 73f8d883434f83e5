"""SLDA: streaming linear discriminant analysis on frozen features (Hayes and Kanan 2020).

The published covariance weights samples by their position in the stream. Ours is the pooled covariance of all samples
so far, the limit of the published one, and does not depend on their order.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.heads import discriminants
from clom.methods.families.base import LearnedTask
from clom.methods.families.frozen import FrozenMethod, more_rows
from clom.methods.families.graphs import FeatureScores, linear
from clom.nets import NetSettings
from clom.settings import Settings, Share


class SldaSettings(Settings):
    shrinkage: Share = 0.6
    """epsilon: the share of the covariance replaced by a multiple of the identity with the same trace. Chosen on
    held-out photos with 40 per class; the paper adds 1e-4 times the identity, for hundreds of thousands of images."""


class Slda(FrozenMethod):
    """`w_c = C^-1 mu_c`, `b_c = -mu_c w_c / 2` with one covariance C for all classes and equal priors."""

    name = "slda"
    settings_type = SldaSettings
    settings: SldaSettings
    class_buffers = ("means", "weight", "bias")
    scoring_buffers = ("weight", "bias")
    scatter: Tensor
    n_samples: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, net: NetSettings, settings: SldaSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        d = self.backbone.n_features
        self.register_buffer("means", torch.empty(0, d, dtype=torch.float64))
        self.register_buffer("scatter", torch.zeros(d, d, dtype=torch.float64))
        self.register_buffer("n_samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.empty(0, d))
        self.register_buffer("bias", torch.empty(0))

    def _open_task(self, task: LearnedTask) -> None:
        self.means, self.weight = (more_rows(old, task.n_classes) for old in (self.means, self.weight))
        self.bias = more_rows(self.bias, task.n_classes)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        features, labels = self.embed(task.train.pixels, context).double(), task.train.labels
        means = torch.stack([features[labels == label].mean(0) for label in range(task.n_classes)])
        self.means[-task.n_classes :] = means
        deviations = features - means[labels]
        self.scatter = self.scatter + deviations.T @ deviations
        self.n_samples = self.n_samples + len(features)
        weight, bias = discriminants(self.means, self.scatter / self.n_samples, self.settings.shrinkage)
        self.weight, self.bias = weight.float(), bias.float()

    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        return F.linear(features, self.weight[rows], self.bias[rows])

    def scoring_graph(self, tasks: Sequence[int]) -> FeatureScores:
        near = super().scoring_graph(tasks)
        scores = linear(self._class_rows("weight", tasks), self._class_rows("bias", tasks))
        return FeatureScores(self.backbone, scores, near.sizes, similarity=near.scores)

    def _forget(self, number: int, task: LearnedTask) -> str:
        super()._forget(number, task)
        return "The covariance, which all classes share, still includes it."

    def n_parameters(self) -> int:
        return super().n_parameters() + self.weight.numel() + self.bias.numel()
