"""Contrastive learning on cached features, for networks with a frozen backbone and few photos."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clom.data.images import Images, to_unit
from clom.data.stream import Task
from clom.data.views import Augmentation, augment, rotation_labels, rotations
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings, RotationContrastive
from clom.learning.loop import Batch, generator
from clom.learning.progress import Progress
from clom.learning.protection.base import Protection


class CachedContrastive(RotationContrastive):
    """RotationContrastive on the cached backbone features of `head.views` views per photo; the first is unaugmented."""

    def __init__(self, settings: ContrastiveSettings) -> None:
        super().__init__(settings)
        if not isinstance(settings.head, HeadSettings):
            raise UserError("Cached features need a solved head (head.kind), not one trained by SGD on fresh views.")
        if settings.outliers:
            raise UserError("learning.outliers does not work with a pretrained network: set it to 0.")
        self.n_views = settings.head.views

    def learn(self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext) -> nn.Module:
        settings = self.settings

        def on_batch(done: int, total: int) -> None:
            context.report(Progress(number, "views", done, total))

        randomness = generator(seed, "views", number)
        bank = feature_bank(
            protection.net.frozen_features,
            task.train,
            settings.augmentation,
            self.rotations,
            self.n_views,
            randomness,
            on_batch,
        )
        return FeatureBankContrastive(settings, bank).learn(protection, number, task, seed, context)


class FeatureBankContrastive(RotationContrastive):
    """The learner of one task, which reads images from the feature bank `[views, rotations, images, d]`."""

    phase = "adapters"

    def __init__(self, settings: ContrastiveSettings, bank: Tensor) -> None:
        super().__init__(settings)
        self.bank = bank

    def pairs(self, task: Task, batch: Batch, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two different views of each image, if there are at least two."""
        n_views, index = len(self.bank), batch.index
        first = torch.randint(n_views, index.shape, generator=randomness).to(index.device)
        step = torch.randint(1, max(2, n_views), index.shape, generator=randomness).to(index.device)
        views = [self.bank[view % n_views, :, index] for view in (first, first + step)]  # [image, rotation, d]
        features = torch.cat([view.transpose(0, 1).flatten(0, 1) for view in views])
        return features, rotation_labels(task.train.labels[index], task.n_classes, self.rotations).repeat(2)

    def head_views(
        self,
        features_of: Callable[[Tensor], Tensor],
        number: int,
        task: Task,
        n_views: int,
        seed: int,
        on_batch: Callable[[int, int], None],
    ) -> tuple[Tensor, Tensor]:
        labels = rotation_labels(task.train.labels, task.n_classes, self.rotations).repeat(len(self.bank))
        on_batch(1, 1)
        return features_of(self.bank.flatten(0, 2)), labels


@torch.no_grad()
def feature_bank(
    features_of: Callable[[Tensor], Tensor],
    photos: Images,
    augmentation: Augmentation,
    n_rotations: int,
    n_views: int,
    randomness: torch.Generator,
    on_batch: Callable[[int, int], None],
    batch: int = 16,
) -> Tensor:
    """Features `[views, rotations, images, d]`; the first view is the unaugmented photo, as at inference."""
    parts = [slice(start, start + batch) for start in range(0, len(photos), batch)]
    views = []
    for view in range(n_views):
        features = []
        for count, part in enumerate(parts, start=1):
            chunk = photos.fetch(part)
            images = to_unit(chunk) if view == 0 else augment(to_unit(chunk), augmentation, randomness)
            rotated = rotations(images, n_rotations).contiguous(memory_format=torch.channels_last)
            features.append(features_of(rotated).view(n_rotations, len(chunk), -1))
            on_batch(view * len(parts) + count, n_views * len(parts))
        views.append(torch.cat(features, 1))
    return torch.stack(views)
