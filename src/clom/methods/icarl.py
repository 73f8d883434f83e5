"""iCaRL (Rebuffi et al. 2017): answer with the class whose exemplars' mean is nearest, not with the head.

The head leans towards new classes; the means do not. They are computed anew after every task with the current network.

| `variant` | training |
|---|---|
| `liu` | LwF.R's (lwf_r.py): behind the paper's figures, hence the default |
| `rebuffi` | the original: linear head, one sigmoid per class, binary cross-entropy |

The original has all outputs from the start, the unseen ones with target 0. Here outputs grow, and `units` keeps the
scale of the loss. Liu et al.'s code swaps colours where it means to mirror exemplars; here they are mirrored.
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
    """Means over exemplars and their mirror images, as published. Not for digits, which are no mirror images."""
    units: Positive | None = None
    """`rebuffi`: outputs that the loss is averaged over, 100 in the original; by default those of the classes seen."""


class Icarl(LwfR):
    """LwF.R's network read by the nearest mean of exemplars."""

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
                f"A memory of {self.settings.memory.size} images leaves none for each of {self.n_seen} classes, but "
                f"{self.name} answers by the mean of stored images. Set memory.size to {self.n_seen} or more."
            )
        super()._learn(task, context)
        self.means = self.class_means(self.n_seen)

    def _loss(self, outputs: Tensor, old_outputs: Tensor | None, labels: Tensor) -> Tensor:
        if self.settings.variant == "liu":
            return super()._loss(outputs, old_outputs, labels)
        return binary_loss(outputs, old_outputs, labels, self.settings.units)

    def class_means(self, n_classes: int) -> Tensor:
        """mu_c, a unit vector for each of the first `n_classes` classes, from their stored images."""
        pixels, labels = self.exemplars()
        if self.settings.flip_means:  # the mean of both means: every image counts once as it is and once mirrored
            pixels, labels = torch.cat([pixels, mirrored(pixels)]), labels.repeat(2)
        return mean_directions(self.embed(pixels), labels, n_classes)

    def scores(self, pixels: Tensor) -> Tensor:
        """`-|phi(x) - mu_c|^2`."""
        return neg_squared_distance(self.embed(pixels), self.means)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        sizes = [self.tasks[task].n_classes for task in tasks]
        return FeatureScores(self.backbone, NearestMeans(self.means[self.columns(tasks)]), sizes)


def mirrored(pixels: Tensor) -> Tensor:
    """`[n, channels, height, width]` with left and right exchanged."""
    return pixels.flip(3)


def binary_loss(outputs: Tensor, old_outputs: Tensor | None, labels: Tensor, units: int | None = None) -> Tensor:
    """Rebuffi et al.'s loss: old classes aim at the old network's sigmoids, new ones at the label.

    An exemplar's label has no effect: its class is an old one. The loss is averaged over the batch and over `units`
    outputs, by default those there are.
    """
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    if old_outputs is not None:
        targets = torch.cat([old_outputs.sigmoid(), targets[:, old_outputs.shape[1] :]], 1)
    total = F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
    return total / (len(outputs) * max(units or 0, outputs.shape[1]))
