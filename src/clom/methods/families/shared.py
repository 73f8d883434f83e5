"""Methods with one network and one growing head for all tasks; blocks are slices of its outputs.

Tested by tests/methods/test_baselines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import Augmentation, augment
from clom.learning.context import State, TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.methods.families.base import Blocks, LearnedTask, Method, seeded
from clom.methods.families.graphs import SharedScores
from clom.nets import NetSettings
from clom.nets.plain import Backbone, CosineHead, LinearHead
from clom.settings import Count, Settings

LossOf = Callable[[Tensor, Tensor], Tensor]
"""From augmented images `[n, 3, h, w]` and their labels over all tasks to a loss."""


class SharedSettings(Settings):
    """How a task is trained, for any loss."""

    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=2e-3)
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)


class SharedNetwork(Method):
    """One network and one head over all classes seen so far. "Labels over all tasks" number these classes from 0."""

    divisible = True
    settings_type: ClassVar[type[Settings]] = SharedSettings
    settings: SharedSettings
    read_by_scores: ClassVar[tuple[str, ...]] = ("backbone", "head")
    """The attributes that `scores` is computed from; nothing else is exported."""

    def __init__(self, net: NetSettings, settings: SharedSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        with seeded(seed, "network"):
            self.backbone = self._make_backbone()
            self.head = self._make_head(self.backbone.n_features)

    def _make_backbone(self) -> Backbone:
        return Backbone(self.net_settings, self.image_shape[-1])

    def _make_head(self, n_features: int) -> LinearHead | CosineHead:
        return LinearHead(n_features)

    def _open_task(self, task: LearnedTask) -> None:
        self.head.grow(task.n_classes)
        self.eval()

    @property
    def n_seen(self) -> int:
        """Number of classes seen so far, including those of the task being learned."""
        return sum(task.n_classes for task in self.tasks)

    @property
    def n_old(self) -> int:
        """Number of classes of all tasks but the last."""
        return sum(task.n_classes for task in self.tasks[:-1])

    def offsets(self) -> Tensor:
        """The first label of each task among labels over all tasks."""
        return torch.tensor([0] + [task.n_classes for task in self.tasks]).cumsum(0)[:-1].to(self.device)

    def columns(self, tasks: Sequence[int]) -> Tensor:
        """The labels over all tasks of these tasks' classes."""
        starts = self.offsets()
        return torch.cat([torch.arange(self.tasks[task].n_classes) + starts[task] for task in tasks])

    def logits(self, images: Tensor) -> Tensor:
        """Logits of augmented images for all outputs of the head; used in training, with gradients."""
        outputs: Tensor = self.head(self.backbone(images))
        return outputs

    def scores(self, pixels: Tensor) -> Tensor:
        """Scores for inference, `[n, classes seen]`: the head's logits unless overridden."""
        outputs: Tensor = self.head(self.embed(pixels))
        return outputs

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        return list(torch.split(self.scores(pixels).cpu(), [task.n_classes for task in self.tasks], 1))

    def features(self, pixels: Tensor, task: int) -> Tensor:
        """The same for every task, since the network is shared."""
        return self.embed(pixels).cpu()

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        sizes = [self.tasks[task].n_classes for task in tasks]
        return SharedScores(self, self.read_by_scores, self.columns(tasks), sizes)

    @torch.no_grad()
    def embed(self, pixels: Tensor) -> Tensor:
        """Features of images without augmentation, in evaluation mode, batch by batch."""
        training = self.training
        self.eval()
        device = self.device
        features = [
            self.backbone(to_unit(batch.to(device)).contiguous(memory_format=torch.channels_last))
            for batch in torch.split(pixels, 256)
        ]
        self.train(training)
        return torch.cat(features) if len(pixels) else torch.empty(0, self.backbone.n_features, device=device)

    def train_on(
        self,
        pixels: Tensor,
        labels: Tensor,
        loss_of: LossOf,
        parameters: Sequence[nn.Parameter],
        context: TrainingContext,
        *,
        settings: SharedSettings | None = None,
        phase: str = "learning",
        views: int = 1,
        state: Sequence[State] = (),
        before_step: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Minimise `loss_of` on these images over `parameters`; afterwards the method is in evaluation mode.

        With several `views`, a batch holds one augmented copy of all its images, then a second of all, and so on.
        `state` lists what training changes outside the method, such as the generators that `loss_of` draws from.
        """
        settings = settings or self.settings
        randomness = self.random(f"{phase} views")

        def loss_of_batch(batch: Batch) -> Tensor:
            index = batch.index.repeat(views)
            images = augment(to_unit(pixels[index]), settings.augmentation, randomness)
            return loss_of(images.contiguous(memory_format=torch.channels_last), labels[index])

        self.train()
        fit(
            loss_of_batch,
            make_optimiser([(settings.optimiser, parameters)]),
            settings.plan,
            len(labels),
            self.random(f"{phase} batches"),
            state=[randomness, *state],
            task=len(self.tasks) - 1,
            phase=phase,
            before_step=before_step,
            after_step=after_step,
            context=context,
        )
        self.eval()

    def new_data(self, task: Task) -> tuple[Tensor, Tensor]:
        """The new task's training images and their labels over all tasks."""
        return task.train.pixels, task.train.labels + self.n_old

    def random(self, purpose: str) -> torch.Generator:
        """A generator seeded for this purpose and the current task."""
        return generator(self.seed, purpose, len(self.tasks) - 1)


class FullHeadSettings(SharedSettings):
    """For methods that are published with the outputs of all classes from the start, trained from the first task on."""

    n_classes: Count | None = 0
    """Number of classes of all tasks; 0 if it is unknown. None, as in the recipes: the experiment's, where there is
    one. Runs of earlier versions, which knew none, have 0."""


class FullHeadNetwork(SharedNetwork):
    """The head has `n_classes` outputs from the start; where that is unknown or exceeded, it grows with the tasks.

    `logits`, for training, are those of all outputs; `scores` are those of the classes seen so far.
    """

    settings: FullHeadSettings
    head: LinearHead

    def _make_head(self, n_features: int) -> LinearHead:
        head = LinearHead(n_features)
        if self.settings.n_classes:
            head.grow(self.settings.n_classes)
        return head

    def _open_task(self, task: LearnedTask) -> None:
        if self.n_seen > self.head.n_outputs:
            self.head.grow(self.n_seen - self.head.n_outputs)
        self.eval()

    def scores(self, pixels: Tensor) -> Tensor:
        return super().scores(pixels)[:, : self.n_seen]
