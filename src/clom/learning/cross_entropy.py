"""CrossEntropy: a task learned as an ordinary classifier, as HAT and SupSup do."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.stream import Task
from clom.data.views import Augmentation, classifier_views
from clom.learning.learner import Learner, settle_norms, training_views
from clom.learning.loop import Batch, Plan, Report, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection import Protection
from clom.settings import Positive, Settings


class CrossEntropySettings(Settings):
    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=2e-3)
    gates_optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=5e-2)
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)
    sweep: Positive | None = None
    """Steps over which the gates' s is annealed; by default one sweep per epoch."""


class CrossEntropy(Learner):
    """Features and head are learned together from the task's classes alone."""

    rotations = 1

    def __init__(self, settings: CrossEntropySettings) -> None:
        self.settings = settings

    def learn(self, protection: Protection, number: int, task: Task, seed: int, report: Report) -> nn.Module:
        how = self.settings
        head = protection.make_head(number, task.n_classes)
        randomness = generator(seed, "views", number)

        def loss_of(batch: Batch) -> Tensor:
            images, classes = classifier_views(
                task.train.pixels[batch.index],
                task.train.labels[batch.index],
                task.n_classes,
                how.augmentation,
                randomness,
                rotations=1,
            )
            images = images.contiguous(memory_format=torch.channels_last)
            features, penalty = protection.training_features(images, number, batch.sweep_position(how.sweep))
            return F.cross_entropy(head(features), classes) + penalty

        trained = [p for p in head.parameters() if p.requires_grad]
        optimiser = make_optimiser(
            [
                (how.optimiser, [*protection.weights(number), *trained]),
                (how.gates_optimiser, protection.mask_parameters(number)),
            ]
        )
        protection.train()
        protection.begin(number)
        fit(
            loss_of,
            optimiser,
            how.plan,
            len(task.train),
            generator(seed, "batches", number),
            task=number,
            before_step=protection.before_step,
            after_step=protection.after_step,
            report=report,
        )
        settle_norms(protection, number, training_views(task, how.augmentation, 1, generator(seed, "settle", number)))
        protection.eval()
        return head
