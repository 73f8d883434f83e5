"""CrossEntropy: each task is an ordinary classifier, as in HAT and SupSup."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import Augmentation, augment
from clom.learning.context import TrainingContext
from clom.learning.learners.base import (
    Learner,
    TrainingSettings,
    recompute_norms,
    train_features,
    training_views,
)
from clom.learning.loop import Batch, generator
from clom.learning.protection.base import Protection
from clom.learning.schedule import Validator


class CrossEntropySettings(TrainingSettings):
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)


class CrossEntropy(Learner):
    """Trains features and head jointly on the task's classes."""

    rotations = 1

    def __init__(self, settings: CrossEntropySettings) -> None:
        self.settings = settings

    def learn(self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext) -> nn.Module:
        settings = self.settings
        head = self.make_head(protection, number, task.n_classes).to(protection.device)
        randomness = generator(seed, "views", number)

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(batch.pixels_of(task.train)), settings.augmentation, randomness)
            images = images.contiguous(memory_format=torch.channels_last)
            features, penalty = protection.training_features(images, number, batch.sweep_position(settings.sweep))
            return F.cross_entropy(head(features), task.train.labels[batch.index]) + penalty

        def outputs_of(images: Tensor) -> tuple[Tensor, Tensor]:
            features, penalty = protection.training_features(images, number, 1.0)  # s_max, as in use
            return head(features), penalty

        validator = Validator(task.validation, outputs_of, [protection, head])
        train_features(
            protection, number, task, seed, settings, loss_of, [head], randomness, context, validator=validator
        )
        recompute_norms(protection, number, training_views(task, settings.augmentation, 1, seed, number))
        protection.eval()
        return head
