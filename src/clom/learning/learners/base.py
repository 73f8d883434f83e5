"""The learner interface, and training steps that work with any protection.

Tested by tests/learning/learners/test_contrastive.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from clom.data.stratified import balanced_rows
from clom.data.stream import Task
from clom.data.views import Augmentation, classifier_views
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator, shuffled_batches
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection.base import Protection
from clom.learning.schedule import Validator
from clom.nets.data_parallel import split_over_ranks
from clom.settings import Positive, Settings


class TrainingSettings(Settings):
    """How a protected network is trained on one task, independent of the loss."""

    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=2e-3)
    gates_optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=5e-2)
    sweep: Positive | None = None
    """Steps of one annealing sweep of the gates' s; by default one epoch."""


class Learner(ABC):
    """Trains a protected network on one task and returns the task's head."""

    rotations: int
    """Number of rotations treated as separate classes: the head has this many outputs per class."""

    def make_head(self, protection: Protection, number: int, n_classes: int) -> nn.Module:
        """An untrained head of the type that `learn` returns."""
        return protection.make_head(number, self.rotations * n_classes)

    @abstractmethod
    def learn(self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext) -> nn.Module:
        """Learn `task` as the protection's task `number`; leaves the network in evaluation mode."""


def train_features(
    protection: Protection,
    number: int,
    task: Task,
    seed: int,
    settings: TrainingSettings,
    loss_of: Callable[[Batch], Tensor],
    extra: Sequence[nn.Module],
    randomness: torch.Generator,
    context: TrainingContext,
    phase: str = "learning",
    validator: Validator | None = None,
) -> None:
    """Minimise `loss_of` over the weights the task may change, its mask and the learner's `extra` modules.

    `randomness` is the generator from which `loss_of` draws its views.
    """
    learned = [parameter for module in extra for parameter in module.parameters() if parameter.requires_grad]
    optimiser = make_optimiser(
        [
            (settings.optimiser, [*protection.weights(number), *learned]),
            (settings.gates_optimiser, protection.mask_parameters(number)),
        ]
    )
    protection.train()
    protection.begin(number)
    fit(
        loss_of,
        optimiser,
        settings.plan,
        len(task.train),
        generator(seed, "batches", number),
        state=[*extra, randomness],
        task=number,
        phase=phase,
        before_step=protection.before_step,
        after_step=protection.after_step,
        validator=validator,
        context=context,
    )


@torch.no_grad()
def recompute_norms(protection: Protection, number: int, views: Iterable[Tensor]) -> None:
    """Recompute the task's batch-norm statistics with its final gates.

    During training the gates are soft and change with every step, so the running averages do not match the final mask
    exactly. Recomputing them costs a few forward passes.
    """
    norms = [norm for layer in protection.net.gated_layers() for norm in layer.norms_of(number)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average over the batches
    protection.train()
    for batch in views:
        protection.features(batch, number)
    protection.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def training_views(
    task: Task,
    augmentation: Augmentation,
    rotations: int,
    seed: int,
    number: int,
    n_images: int = 1024,
    batch: int = 128,
) -> Iterator[Tensor]:
    """Batches of augmented, rotated training images: random rows, as many of each class, in random order. Data are
    often sorted by class, and the first rows would represent a few classes only."""
    views = generator(seed, "settle", number)
    drawn = generator(seed, "settle rows", number)
    rows = balanced_rows(task.train.labels, n_images, drawn)
    for index in shuffled_batches(len(rows), batch, drawn):
        part = rows[index.to(rows.device)]
        pixels, own = task.train.fetch(part), task.train.labels[part]
        yield classifier_views(pixels, own, task.n_classes, augmentation, views, rotations=rotations)[0]


@torch.no_grad()
def view_features(
    features_of: Callable[[Tensor], Tensor],
    number: int,
    task: Task,
    augmentation: Augmentation,
    rotations: int,
    n_views: int,
    seed: int,
    batch: int = 128,
    on_batch: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Frozen features and rotation classes of `n_views` augmented views of every training image."""
    randomness = generator(seed, "head views", number)
    features, labels = [], []
    starts = range(0, len(task.train), batch)
    for view in range(n_views):
        for count, start in enumerate(starts):
            part = slice(start, start + batch)
            pixels, own = task.train.fetch(part), task.train.labels[part]
            images, classes = classifier_views(
                pixels, own, task.n_classes, augmentation, randomness, rotations=rotations
            )
            features.append(split_over_ranks(features_of, images.contiguous(memory_format=torch.channels_last)))
            labels.append(classes)
            if on_batch is not None:
                on_batch(view * len(starts) + count + 1, n_views * len(starts))
    return torch.cat(features), torch.cat(labels)
