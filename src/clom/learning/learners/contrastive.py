"""A task learned as an out-of-distribution detector (the paper's Sec. "Learning Each Task as OOD Detection")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.stream import Task
from clom.data.views import Augmentation, Order, classifier_views, contrastive_views
from clom.learning.context import State, TrainingContext
from clom.learning.heads import HeadSettings, expand_head, make_head, relative_to_last, solve_head, weigh_rotations
from clom.learning.learners.base import (
    Learner,
    TrainingSettings,
    recompute_norms,
    train_features,
    training_views,
    view_features,
)
from clom.learning.learners.outliers import outlier_features, outlier_views
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.losses import supervised_contrastive
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.progress import Progress
from clom.learning.protection.base import Protection
from clom.learning.schedule import Schedule
from clom.nets.data_parallel import split_over_ranks
from clom.nets.layers import GatedLinear, Net
from clom.settings import NonNegative, Positive, PositiveNumber, Settings


class SgdHeadSettings(Settings):
    """Step 2 as in the paper: SGD on fresh views, lr 0.1, divided by ten after 60, 75 and 90 of 100 epochs."""

    views: Positive = 1
    """Augmented views of each image of a batch, each in all rotations; the paper's 8N are two."""

    plan: Plan = Plan(epochs=100, batch=128, schedule=Schedule(kind="steps", steps=(60, 75, 90), every="epoch"))
    optimiser: OptimiserSettings = OptimiserSettings(kind="sgd", lr=0.1)


class ContrastiveSettings(TrainingSettings):
    """Settings of both steps of learning a task."""

    rotations: Literal[1, 4] = 4
    """4: every rotation of a class is a separate class (CLOM). 1: no rotation classes, CLOM (w/o OOD)."""
    temperature: PositiveNumber = 0.07
    projection: Positive = 128
    """Outputs of the projection g."""
    projection_layer: Literal["task", "shared"] = "task"
    """The first of g's two layers: `task` is new for every task; `shared` has gates, and is shared and protected like
    the network's layers, as in the authors' code. The second layer is always new."""
    augmentation: Augmentation = Augmentation()
    order: Order = "paper"
    authors_loss: bool = False
    """Count the anchor among its positives, as the authors' code does."""
    cross_entropy: NonNegative = 0.0
    """Weight of an additional rotation cross-entropy loss in step 1; the paper has none."""
    outliers: NonNegative = 0.0
    """Stored samples of earlier tasks in every batch, as a fraction of its images, and in the fit of the head: outlier
    exposure, see `clom.learning.learners.outliers`. The paper has none."""
    head: HeadSettings | SgdHeadSettings = HeadSettings()

    @model_validator(mode="after")
    def _outliers_need_a_logistic_head(self) -> Self:
        if self.outliers and not (isinstance(self.head, HeadSettings) and self.head.kind == "logistic"):
            raise ValueError("outliers need a head that is solved by logistic regression (head.kind: logistic)")
        return self


def shared_projection(net: Net) -> GatedLinear:
    """The layer of g that all tasks share if `projection_layer` is `shared`."""
    return GatedLinear(net.n_features, net.n_features, gate_in=net.feature_group, gate_out="projection")


class Projection(nn.Sequential):
    """Projection head g for the contrastive loss; discarded after the task."""

    def __init__(self, n_features: int, n_out: int) -> None:
        super().__init__(nn.Linear(n_features, n_features), nn.ReLU(), nn.Linear(n_features, n_out))


class RotationContrastive(Learner):
    """Step 1: supervised contrastive learning over rotation classes. Step 2: a linear head on the frozen features."""

    phase = "features"
    """Name of step 1 in progress reports."""

    def __init__(self, settings: ContrastiveSettings) -> None:
        self.settings = settings
        self.rotations = settings.rotations

    def make_head(self, protection: Protection, number: int, n_classes: int) -> nn.Module:
        settings = self.settings.head
        if isinstance(settings, SgdHeadSettings):
            return super().make_head(protection, number, n_classes)
        # Solved heads are not masked.
        return make_head(settings, protection.net.n_features, self.rotations * n_classes)

    def learn(self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext) -> nn.Module:
        self._learn_features(protection, number, task, seed, context)
        protection.eval()
        if isinstance(self.settings.head, SgdHeadSettings):
            return self._train_head(self.settings.head, protection, number, task, seed, context)
        return self._solve_head(self.settings.head, protection, number, task, seed, context)

    def _learn_features(
        self, protection: Protection, number: int, task: Task, seed: int, context: TrainingContext
    ) -> None:
        """Step 1: minimise L_c + L_r (Eq. 17)."""
        settings = self.settings
        n_features = protection.net.n_features
        shared = settings.projection_layer == "shared"
        make_projection = nn.Linear if shared else Projection
        projection = make_projection(n_features, settings.projection).to(protection.device)
        extra_head = nn.Linear(n_features, settings.rotations * task.n_classes).to(protection.device)
        randomness = generator(seed, "views", number)

        def loss_of(batch: Batch) -> Tensor:
            images, classes = self._training_views(task, batch, randomness)
            position = batch.sweep_position(settings.sweep)
            features, penalty = protection.training_features(images, number, position)
            z = F.normalize(projection(protection.projected(features, number, position) if shared else features))
            loss = supervised_contrastive(z, classes, settings.temperature, authors_form=settings.authors_loss)  # Eq. 3
            if settings.cross_entropy:
                loss = loss + settings.cross_entropy * F.cross_entropy(extra_head(features), classes)
            return loss + penalty

        extra = [projection, extra_head] if settings.cross_entropy else [projection]
        train_features(protection, number, task, seed, settings, loss_of, extra, randomness, context, self.phase)
        views = training_views(task, settings.augmentation, settings.rotations, seed, number)
        recompute_norms(protection, number, views)

    def _training_views(self, task: Task, batch: Batch, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
        """The batch's views and classes, followed by those of outliers if there are any."""
        own = self.pairs(task, batch, randomness)
        settings, outliers = self.settings, task.outliers
        if outliers is None or not settings.outliers:
            return own
        count = max(1, round(settings.outliers * len(batch.index)))
        other = outlier_views(outliers, count, settings.augmentation, randomness, settings.rotations, settings.order)
        images, classes = (
            torch.cat([own[0], other[0]]),
            torch.cat([own[1], other[1] + settings.rotations * task.n_classes]),
        )
        return images.contiguous(memory_format=torch.channels_last), classes

    def pairs(self, task: Task, batch: Batch, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
        """Views of the batch's training images (two in all rotations, `contrastive_views`) and their rotation
        classes."""
        settings = self.settings
        images, classes = contrastive_views(
            batch.pixels_of(task.train),
            task.train.labels[batch.index],
            task.n_classes,
            settings.augmentation,
            randomness,
            rotations=settings.rotations,
            order=settings.order,
        )
        return images.contiguous(memory_format=torch.channels_last), classes

    def head_views(
        self,
        features_of: Callable[[Tensor], Tensor],
        number: int,
        task: Task,
        n_views: int,
        seed: int,
        on_batch: Callable[[int, int], None],
    ) -> tuple[Tensor, Tensor]:
        """Frozen features of `n_views` views of all training images, and their rotation classes."""
        return view_features(
            features_of, number, task, self.settings.augmentation, self.rotations, n_views, seed, on_batch=on_batch
        )

    def _solve_head(
        self,
        settings: HeadSettings,
        protection: Protection,
        number: int,
        task: Task,
        seed: int,
        context: TrainingContext,
    ) -> nn.Linear:
        """Step 2, solved: features are extracted once per view, then the convex problem of Eq. 4 is minimised."""

        def on_batch(done: int, total: int) -> None:
            context.report(Progress(number, "head", done, total))

        features_of, kept = protection.inference_features(number)
        features, classes = self.head_views(features_of, number, task, settings.views, seed, on_batch)
        n_outputs = self.rotations * task.n_classes
        if task.outliers is not None and self.settings.outliers:
            randomness = generator(seed, "outliers", number)
            other = outlier_features(features_of, task.outliers, self.settings.augmentation, self.rotations, randomness)
            features = torch.cat([features, other])
            classes = torch.cat([classes, classes.new_full((len(other),), n_outputs)])
            solved = relative_to_last(solve_head(features, classes, n_outputs + 1, settings))
        else:
            solved = solve_head(features, classes, n_outputs, settings)
        weigh_rotations(solved, settings.upright, self.rotations)
        return expand_head(solved, kept, protection.net.n_features)

    def _train_head(
        self,
        settings: SgdHeadSettings,
        protection: Protection,
        number: int,
        task: Task,
        seed: int,
        context: TrainingContext,
    ) -> nn.Module:
        """Step 2 as in the paper: cross-entropy over rotation classes (Eq. 4), h frozen."""
        head = self.make_head(protection, number, task.n_classes).to(protection.device)
        randomness = generator(seed, "head views", number)

        def loss_of(batch: Batch) -> Tensor:
            pixels = batch.pixels_of(task.train)
            views = [
                classifier_views(
                    pixels,
                    task.train.labels[batch.index],
                    task.n_classes,
                    self.settings.augmentation,
                    randomness,
                    rotations=self.rotations,
                )
                for _ in range(settings.views)
            ]
            images, classes = (torch.cat(parts) for parts in zip(*views, strict=True))
            with torch.no_grad():
                features = split_over_ranks(partial(protection.features, task=number), images)
            return F.cross_entropy(head(features), classes)

        optimiser = make_optimiser([(settings.optimiser, [p for p in head.parameters() if p.requires_grad])])
        order = generator(seed, "head batches", number)
        state: list[State] = [head, randomness]
        fit(
            loss_of,
            optimiser,
            settings.plan,
            len(task.train),
            order,
            state=state,
            task=number,
            phase="head",
            context=context,
        )
        return head
