"""iCaRL (Rebuffi et al. 2017): nearest-mean-of-exemplars classification instead of the head.

The head is biased towards new classes; the means, recomputed after every task with the current network, are not.

| `variant` | training |
|---|---|
| `liu` | as LwF.R (lwf_r.py): used for the paper's figures, hence the default |
| `rebuffi` | the original: linear head, one sigmoid per class, binary cross-entropy |

The original has all outputs from the start, with target 0 for unseen classes. Here the head grows, and `units`
preserves the scale of the loss. Liu et al.'s code swaps colour channels where it means to flip exemplars; this one
flips them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.nearest_mean import mean_directions, neg_squared_distance
from clom.methods.families.base import LearnedTask
from clom.methods.families.graphs import FeatureScores, NearestMeans
from clom.methods.lwf_r import LwfR, LwfRSettings
from clom.nets import NetSettings
from clom.nets.plain import CosineHead, LinearHead
from clom.settings import Positive, Settings


class IcarlSettings(LwfRSettings):
    variant: Literal["liu", "rebuffi"] = "liu"
    flip_means: bool = False
    """Means over exemplars and their horizontal flips, as published. Not for digits, where a flip changes the class."""
    units: Positive | None = None
    """`rebuffi`: number of outputs that the loss is averaged over, 100 in the original; by default the classes seen."""


class Icarl(LwfR):
    """LwF.R's network with nearest-mean-of-exemplars classification."""

    name = "icarl"
    settings_type: ClassVar[type[Settings]] = IcarlSettings
    settings: IcarlSettings
    means: Tensor

    def __init__(self, net: NetSettings, settings: IcarlSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("means", torch.empty(0, self.backbone.n_features))

    def _make_head(self, n_features: int) -> CosineHead | LinearHead:
        return CosineHead(n_features) if self.settings.variant == "liu" else LinearHead(n_features)

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        self.means = self.means.new_zeros(self.n_seen, self.backbone.n_features)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        if self.quota < 1:
            raise UserError(
                f"{self.name} classifies by the mean of each class's stored images, but a memory of "
                f"{self.settings.memory.size} images has none for each of {self.n_seen} classes. Set memory.size to "
                f"{self.n_seen} or more."
            )
        super()._learn(task, context)
        self.means = self.class_means(self.n_seen)

    def _loss(self, outputs: Tensor, old_outputs: Tensor | None, labels: Tensor) -> Tensor:
        if self.settings.variant == "liu":
            return super()._loss(outputs, old_outputs, labels)
        return binary_loss(outputs, old_outputs, labels, self.settings.units)

    def class_means(self, n_classes: int) -> Tensor:
        """mu_c: the mean direction of the stored images of each of the first `n_classes` classes."""
        pixels, labels = self.exemplars()
        if self.settings.flip_means:
            pixels, labels = torch.cat([pixels, flipped(pixels)]), labels.repeat(2)
        return mean_directions(self.embed(pixels), labels, n_classes)

    def scores(self, pixels: Tensor) -> Tensor:
        """`-|phi(x) - mu_c|^2`."""
        return neg_squared_distance(self.embed(pixels), self.means)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        sizes = [self.tasks[task].n_classes for task in tasks]
        return FeatureScores(self.backbone, NearestMeans(self.means[self.columns(tasks)]), sizes)


def flipped(pixels: Tensor) -> Tensor:
    """`[n, channels, height, width]`, flipped horizontally."""
    return pixels.flip(3)


def binary_loss(outputs: Tensor, old_outputs: Tensor | None, labels: Tensor, units: int | None = None) -> Tensor:
    """Rebuffi et al.'s loss: targets are the old network's sigmoids for old classes and the labels for new ones.

    The labels of exemplars have no effect, since their classes are old. The loss is averaged over the batch and over
    `units` outputs, by default all.
    """
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    if old_outputs is not None:
        targets = torch.cat([old_outputs.sigmoid(), targets[:, old_outputs.shape[1] :]], 1)
    total = F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
    return total / (len(outputs) * max(units or 0, outputs.shape[1]))
