"""PASS: old classes are kept as one prototype each, features by distillation and rotations; no image is stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.stream import Task
from clom.data.views import rotate
from clom.learning.context import TrainingContext
from clom.learning.distillation import teacher_of
from clom.methods.families.base import LearnedTask
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings
from clom.settings import NonNegative, PositiveNumber

TURNS = 4
"""Every rotation of a class is a class; turn k of class c is output 4c + k."""


class PassSettings(SharedSettings):
    """The defaults are the original code's for CIFAR-100."""

    temperature: PositiveNumber = 0.1
    prototypes: NonNegative = 10.0
    """lambda: weight of the loss on noisy prototypes."""
    distillation: NonNegative = 10.0
    """gamma: weight of the distance to the old features. That is a norm over the whole batch, not a mean, so its
    size grows with the square root of the batch and of the number of features."""


class Pass(SharedNetwork):
    """Zhu, Zhang, Wang, Yin, Liu: Prototype Augmentation and Self-Supervision for Incremental Learning, CVPR 2021.

    The equations are those of the original code. It differs in this: prototypes are means over all plain training
    images (there over augmented ones, without the last partial batch), features and outputs come from one pass
    through the network (there two, which moves normalisation statistics twice), and the noise has the features' size.
    """

    name = "pass"
    settings_type = PassSettings
    settings: PassSettings
    prototypes: Tensor
    radius: Tensor

    def __init__(self, net: NetSettings, settings: PassSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("prototypes", torch.empty(0, self.backbone.n_features))
        self.register_buffer("radius", torch.zeros(()))

    def _open_task(self, task: LearnedTask) -> None:
        self.head.grow(TURNS * task.n_classes)
        new = self.prototypes.new_zeros(task.n_classes, self.backbone.n_features)
        self.prototypes = torch.cat([self.prototypes, new])
        self.eval()

    def n_parameters(self) -> int:
        """Answers need one output per class; those of the turned classes are for training."""
        return sum(p.numel() for p in self.backbone.parameters()) + self.n_seen * (self.backbone.n_features + 1)

    def scores(self, pixels: Tensor) -> Tensor:
        """Of the image as it is, for the classes as they are: the outputs of the other turns are not asked."""
        return upright(super().scores(pixels))

    def _learn(self, task: Task, context: TrainingContext) -> None:
        how, n_old = self.settings, self.n_old
        teacher, noise = teacher_of(self.backbone), self.random("prototypes")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            turned, classes = turned_classes(images, labels)
            features = self.backbone(turned)
            loss = cooled_cross_entropy(self.head(features), classes, how.temperature)  # L_ce
            if not n_old:
                return loss
            with torch.no_grad():
                past = teacher(turned)
            # As many prototypes as there are images before turning.
            remembered = self.prototype_loss(len(labels), noise)
            return loss + how.prototypes * remembered + how.distillation * feature_distance(features, past)

        self.train_on(*self.new_data(task), loss_of, list(self.parameters()), context, state=[noise])
        self._summarise(task)

    def prototype_loss(self, count: int, noise: torch.Generator) -> Tensor:
        """L_proto: the head alone must still recognise old classes, upright."""
        features, classes = pseudo_features(self.prototypes[: self.n_old], self.radius, count, noise)
        return cooled_cross_entropy(self.head(features), classes, self.settings.temperature)

    def _summarise(self, task: Task) -> None:
        """The new classes' mean features. Old prototypes stay, and the radius is the first task's for ever."""
        features = self.embed(task.train.pixels)
        for label in range(task.n_classes):
            self.prototypes[self.n_old + label] = features[task.train.labels == label].mean(0)
        if len(self.tasks) == 1:
            self.radius.copy_(radius_of(features, task.train.labels))


def turned_classes(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All four turns of the first image, then of the second, ...; turn k of class c is class 4c + k."""
    turned = torch.stack([rotate(images, turn) for turn in range(TURNS)], 1).flatten(0, 1)
    classes = (TURNS * labels[:, None] + torch.arange(TURNS, device=labels.device)).flatten()
    return turned.contiguous(memory_format=torch.channels_last), classes


def upright(outputs: Tensor) -> Tensor:
    """The outputs of the classes as they are, without those of their turns."""
    return outputs[:, ::TURNS]


def cooled_cross_entropy(outputs: Tensor, classes: Tensor, temperature: float) -> Tensor:
    return F.cross_entropy(outputs / temperature, classes)


def feature_distance(features: Tensor, past: Tensor) -> Tensor:
    """L_kd: the L2 norm of the whole difference, neither squared nor a mean; `torch.dist` has gradient 0 at 0."""
    return torch.dist(features, past)


def pseudo_features(prototypes: Tensor, radius: Tensor, count: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """`mu_c + r eps` of old classes c drawn uniformly, and the output of the upright class, 4c."""
    drawn = torch.randint(len(prototypes), (count,), generator=noise).to(prototypes.device)
    spread = torch.randn(count, prototypes.shape[1], generator=noise).to(prototypes.device)
    return prototypes[drawn] + radius * spread, TURNS * drawn


def radius_of(features: Tensor, labels: Tensor) -> Tensor:
    """`r^2` is the mean over classes of trace(Cov) / d, the variance per feature; a class of one image has none."""
    of_class = [features[labels == label] for label in torch.unique(labels)]
    variances = [own.var(0).mean() for own in of_class if len(own) > 1]
    return torch.stack(variances).mean().sqrt() if variances else features.new_zeros(())
