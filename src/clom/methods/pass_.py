"""PASS: one prototype per old class, feature distillation and rotation classes; no image is stored."""

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

ROTATIONS = 4
"""Every rotation of a class is a class; rotation k of class c is output 4c + k."""


class PassSettings(SharedSettings):
    """The defaults are those of the original code for CIFAR-100."""

    temperature: PositiveNumber = 0.1
    prototypes: NonNegative = 10.0
    """lambda: weight of the loss on noisy prototypes."""
    distillation: NonNegative = 10.0
    """gamma: weight of the distance to the old features, a norm over the whole batch rather than a mean: it grows with
    the square root of the batch size and of the number of features."""


class Pass(SharedNetwork):
    """Zhu, Zhang, Wang, Yin, Liu: Prototype Augmentation and Self-Supervision for Incremental Learning, CVPR 2021.

    The equations are those of the original code. Differences: prototypes are means over all training images without
    augmentation (there with it, without the last partial batch), features and logits come from one forward pass (there
    from two, which update normalisation statistics twice), and the noise has the features' dimension.
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
        self.head.grow(ROTATIONS * task.n_classes)
        new = self.prototypes.new_zeros(task.n_classes, self.backbone.n_features)
        self.prototypes = torch.cat([self.prototypes, new])
        self.eval()

    def n_parameters(self) -> int:
        """Inference needs one output per class; those of rotated classes are for training."""
        return sum(p.numel() for p in self.backbone.parameters()) + self.n_seen * (self.backbone.n_features + 1)

    def scores(self, pixels: Tensor) -> Tensor:
        """The outputs of the unrotated classes for the unrotated image."""
        return upright(super().scores(pixels))

    def _learn(self, task: Task, context: TrainingContext) -> None:
        settings, n_old = self.settings, self.n_old
        teacher, noise = teacher_of(self.backbone), self.random("prototypes")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            rotated, classes = rotation_classes(images, labels)
            features = self.backbone(rotated)
            loss = scaled_cross_entropy(self.head(features), classes, settings.temperature)  # L_ce
            if not n_old:
                return loss
            with torch.no_grad():
                past = teacher(rotated)
            # As many prototypes as images before rotation.
            prototype_loss = self.prototype_loss(len(labels), noise)
            distance = feature_distance(features, past)
            return loss + settings.prototypes * prototype_loss + settings.distillation * distance

        self.train_on(*self.new_data(task), loss_of, list(self.parameters()), context, state=[noise])
        self._store_prototypes(task)

    def prototype_loss(self, count: int, noise: torch.Generator) -> Tensor:
        """L_proto: the head must still classify noisy prototypes of the old classes, unrotated."""
        features, classes = pseudo_features(self.prototypes[: self.n_old], self.radius, count, noise)
        return scaled_cross_entropy(self.head(features), classes, self.settings.temperature)

    def _store_prototypes(self, task: Task) -> None:
        """The mean features of the new classes. Old prototypes stay, and the radius is that of the first task."""
        features = self.embed(task.train.pixels)
        for label in range(task.n_classes):
            self.prototypes[self.n_old + label] = features[task.train.labels == label].mean(0)
        if len(self.tasks) == 1:
            self.radius.copy_(radius_of(features, task.train.labels))


def rotation_classes(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All four rotations of the first image, then of the second, ...; rotation k of class c is class 4c + k."""
    rotated = torch.stack([rotate(images, turn) for turn in range(ROTATIONS)], 1).flatten(0, 1)
    classes = (ROTATIONS * labels[:, None] + torch.arange(ROTATIONS, device=labels.device)).flatten()
    return rotated.contiguous(memory_format=torch.channels_last), classes


def upright(outputs: Tensor) -> Tensor:
    """The outputs of the unrotated classes."""
    return outputs[:, ::ROTATIONS]


def scaled_cross_entropy(outputs: Tensor, classes: Tensor, temperature: float) -> Tensor:
    return F.cross_entropy(outputs / temperature, classes)


def feature_distance(features: Tensor, past: Tensor) -> Tensor:
    """L_kd: the L2 norm over the whole batch, neither squared nor a mean; `torch.dist` has gradient 0 at 0."""
    return torch.dist(features, past)


def pseudo_features(prototypes: Tensor, radius: Tensor, count: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """`mu_c + r eps` of old classes c drawn uniformly, and their unrotated outputs 4c."""
    drawn = torch.randint(len(prototypes), (count,), generator=noise).to(prototypes.device)
    eps = torch.randn(count, prototypes.shape[1], generator=noise).to(prototypes.device)
    return prototypes[drawn] + radius * eps, ROTATIONS * drawn


def radius_of(features: Tensor, labels: Tensor) -> Tensor:
    """`r^2` is the mean over classes of trace(Cov) / d, the variance per feature; classes of one image are left out."""
    of_class = [features[labels == label] for label in torch.unique(labels)]
    variances = [own.var(0).mean() for own in of_class if len(own) > 1]
    return torch.stack(variances).mean().sqrt() if variances else features.new_zeros(())
