"""How one task is learned, whatever protects the tasks before it.

Tested by tests/learning/learners/test_contrastive.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clom.data.stream import Task
from clom.data.views import Augmentation, classifier_views
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection.base import Protection
from clom.nets.data_parallel import split_over_ranks
from clom.settings import Positive, Settings


class TrainingSettings(Settings):
    """How the network behind a protection is trained on one task, whatever the loss."""

    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=2e-3)
    gates_optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=5e-2)
    sweep: Positive | None = None
    """Steps over which the gates' s is annealed; by default one sweep per epoch."""


class Learner(ABC):
    """Teaches the network behind a protection one task, and returns the task's head."""

    rotations: int
    """How many rotations of each class are classes of their own: the head has this many outputs per class."""

    def make_head(self, protection: Protection, number: int, n_classes: int) -> nn.Module:
        """An untrained head of the kind that `learn` returns."""
        return protection.make_head(number, self.rotations * n_classes)

    @abstractmethod
    def learn(self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext) -> nn.Module:
        """Learn `task` as the protection's task `number`; afterwards the network is in evaluation mode."""


def train_features(
    protection: Protection,
    number: int,
    task: Task,
    seed: int,
    how: TrainingSettings,
    loss_of: Callable[[Batch], Tensor],
    extra: Sequence[nn.Module],
    randomness: torch.Generator,
    context: TrainingContext,
    phase: str = "learning",
) -> None:
    """Minimise `loss_of` over the weights the task may move, its mask, and `extra` networks of the learner's own.

    `randomness` is what `loss_of` draws its views from.
    """
    learned = [parameter for part in extra for parameter in part.parameters() if parameter.requires_grad]
    optimiser = make_optimiser(
        [
            (how.optimiser, [*protection.weights(number), *learned]),
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
        state=[*extra, randomness],
        task=number,
        phase=phase,
        before_step=protection.before_step,
        after_step=protection.after_step,
        context=context,
    )


@torch.no_grad()
def recompute_norms(protection: Protection, number: int, views: list[Tensor]) -> None:
    """Recompute the task's normalisation statistics with its final gates.

    While a task is learned its gates are soft and change with every step, and so do the running averages. A network of
    the final mask has slightly other statistics; taking them once more costs a few forward passes.
    """
    norms = [norm for layer in protection.net.gated_layers() for norm in layer.norms_of(number)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    protection.train()
    for batch in views:
        protection.features(batch, number)
    protection.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def training_views(
    task: Task, how: Augmentation, rotations: int, randomness: torch.Generator, n_images: int = 1024, batch: int = 128
) -> list[Tensor]:
    """Batches of augmented, rotated training images: what the task's network will see, in small."""
    return [
        classifier_views(
            task.train.pixels[start : start + batch],
            task.train.labels[start : start + batch],
            task.n_classes,
            how,
            randomness,
            rotations=rotations,
        )[0]
        for start in range(0, min(len(task.train), n_images), batch)
    ]


@torch.no_grad()
def view_features(
    features_of: Callable[[Tensor], Tensor],
    number: int,
    task: Task,
    how: Augmentation,
    rotations: int,
    n_views: int,
    seed: int,
    batch: int = 128,
    on_batch: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Frozen features and rotation classes of `n_views` augmented views of every training image: computed only once."""
    randomness = generator(seed, "head views", number)
    features, labels = [], []
    starts = range(0, len(task.train), batch)
    for view in range(n_views):
        for count, start in enumerate(starts):
            part = task.train[slice(start, start + batch)]
            images, classes = classifier_views(
                part.pixels, part.labels, task.n_classes, how, randomness, rotations=rotations
            )
            features.append(split_over_ranks(features_of, images.contiguous(memory_format=torch.channels_last)))
            labels.append(classes)
            if on_batch is not None:
                on_batch(view * len(starts) + count + 1, n_views * len(starts))
    return torch.cat(features), torch.cat(labels)
