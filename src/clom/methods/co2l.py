"""Co2L: contrastive features preserved by distilling similarities, and a linear classifier retrained every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import augment
from clom.learning.context import State, TrainingContext
from clom.learning.distillation import teacher_of
from clom.learning.heads import HeadSettings, solve_head
from clom.learning.learners.contrastive import Projection, SgdHeadSettings
from clom.learning.loop import Batch, fit
from clom.learning.losses import asymmetric_contrastive, relation_distillation
from clom.learning.optim import make_optimiser
from clom.methods.families.base import seeded
from clom.methods.families.replay import ReplayMethod, ReplaySettings
from clom.nets import NetSettings
from clom.settings import NonNegative, Positive, PositiveNumber


class Co2LSettings(ReplaySettings):
    """The defaults are those of the original code for CIFAR-10, except `teacher_bn` and `head`.

    `memory.rounding` has no effect: sizes are rounded at random, so that the memory is always full.
    """

    first_epochs: Positive | None = None
    """Epochs of the first task; by default as many as for later ones. The original trains it five times as long."""
    projection: Positive = 128
    temperature: PositiveNumber = 0.5
    base_temperature: PositiveNumber = 0.07
    """L_asym, but not L_ird, is multiplied by `temperature / base_temperature`, about 7."""
    distillation: NonNegative = 1.0
    """lambda: weight of L_ird."""
    similarity_temperature: PositiveNumber = 0.2
    """kappa, of the network being trained."""
    past_temperature: PositiveNumber = 0.01
    """kappa*, of the network before the task."""
    teacher_bn: Literal["eval", "batch"] = "eval"
    """Normalisation of the old network: running statistics (`eval`), or batch statistics (`batch`), which the original
    code uses by oversight."""
    head: HeadSettings | SgdHeadSettings = HeadSettings()
    """Solved on features that are extracted once (the default: exact and fast), or trained by SGD on fresh views."""


class Co2L(ReplayMethod):
    """Cha, Lee, Shin: Co2L: Contrastive Continual Learning, ICCV 2021.

    Differences from the original code: each task starts with a new optimiser (there momentum carries over), the cosine
    schedule ends at 0 (there at a thousandth), and the classifier grows with the classes. The values for CIFAR-100 and
    Tiny-ImageNet are from public scripts, not from the paper.
    """

    name = "co2l"
    settings_type = Co2LSettings
    settings: Co2LSettings

    def __init__(self, net: NetSettings, settings: Co2LSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        with seeded(seed, "projection"):  # shared by all tasks: the distilled similarities are those of its outputs
            self.projection = Projection(self.backbone.n_features, settings.projection)

    def n_parameters(self) -> int:
        """Without the projection, which inference does not need."""
        return sum(p.numel() for module in (self.backbone, self.head) for p in module.parameters())

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pixels, labels = self.new_and_stored(task)
        self._learn_representation(pixels, labels, context)
        self._learn_head(pixels, labels, context)
        # Last, because the task's classifier is trained with the memory from before the task.
        self._refill(task)

    def _learn_representation(self, pixels: Tensor, labels: Tensor, context: TrainingContext) -> None:
        settings, first, n_old = self.settings, len(self.tasks) == 1, self.n_old
        if first and settings.first_epochs:
            plan = settings.plan.model_copy(update={"epochs": settings.first_epochs})
            settings = settings.model_copy(update={"plan": plan})
        network = nn.Sequential(self.backbone, self.projection)
        teacher = teacher_of(network).train(settings.teacher_bn == "batch")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            z = F.normalize(network(images))
            loss = asymmetric_contrastive(z, labels, labels >= n_old, settings.temperature, settings.base_temperature)
            if first:
                return loss
            with torch.no_grad():
                past = F.normalize(teacher(images))
            distilled = relation_distillation(z, past, settings.similarity_temperature, settings.past_temperature)
            return loss + settings.distillation * distilled  # L = L_asym + lambda L_ird

        self.train_on(pixels, labels, loss_of, list(network.parameters()), context, settings=settings, views=2)

    def _learn_head(self, pixels: Tensor, labels: Tensor, context: TrainingContext) -> None:
        """A new classifier on the backbone's features, neither projected nor normalised, with balanced classes."""
        settings = self.settings.head
        if isinstance(settings, SgdHeadSettings):
            head = self._train_head(settings, pixels, labels, context)
        else:
            head = self._solve_head(settings, pixels, labels)
        with torch.no_grad():
            for part, offset in zip(self.head.parts, self.offsets().tolist(), strict=True):
                rows = slice(offset, offset + part.out_features)
                part.weight.copy_(head.weight[rows])
                part.bias.copy_(head.bias[rows])

    def _solve_head(self, settings: HeadSettings, pixels: Tensor, labels: Tensor) -> nn.Linear:
        """Class weights equal balanced sampling in expectation, so this is the minimum that SGD would approach."""
        randomness = self.random("head views")
        views = [self._view_features(pixels, randomness) for _ in range(settings.views)]
        weights = 1 / torch.bincount(labels, minlength=self.n_seen).clamp(min=1)
        return solve_head(torch.cat(views), labels.repeat(settings.views), self.n_seen, settings, weights)

    def _train_head(
        self, settings: SgdHeadSettings, pixels: Tensor, labels: Tensor, context: TrainingContext
    ) -> nn.Linear:
        """As published: an epoch draws as many images as there are, with classes balanced in expectation."""
        head = nn.Linear(self.backbone.n_features, self.n_seen).to(labels.device)
        weights, draws, randomness = balanced(labels.cpu()), self.random("head draws"), self.random("head views")

        def loss_of(batch: Batch) -> Tensor:
            drawn = torch.multinomial(weights, len(batch.index), replacement=True, generator=draws).to(labels.device)
            drawn = drawn.repeat(settings.views)
            return F.cross_entropy(head(self._view_features(pixels[drawn], randomness)), labels[drawn])

        state: list[State] = [head, draws, randomness]
        fit(
            loss_of,
            make_optimiser([(settings.optimiser, list(head.parameters()))]),
            settings.plan,
            len(labels),
            self.random("head batches"),
            state=state,
            task=len(self.tasks) - 1,
            phase="head",
            context=context,
        )
        return head

    def _view_features(self, pixels: Tensor, randomness: torch.Generator) -> Tensor:
        """Frozen features of one augmented view of each image."""
        augmentation, batches = self.settings.augmentation, torch.split(pixels, 256)
        return torch.cat([self.embed(augment(to_unit(batch), augmentation, randomness)) for batch in batches])

    def _refill(self, task: Task) -> None:
        """Give each of the t tasks so far 1/t of the memory: old classes drop random images in favour of new ones.

        Images of a class are stored in random order, so the last ones can be dropped.
        """
        randomness = self.random("memory")
        order = torch.randperm(len(task.train), generator=randomness).to(task.train.labels.device)
        self.memory.add(len(self.tasks) - 1, task.train.pixels[order], task.train.labels[order])
        _, labels = self.exemplars()
        sizes = self._sizes(torch.rand(1, generator=randomness).item())
        rows = [(labels == label).nonzero().flatten()[:size] for label, size in enumerate(sizes)]
        self.memory.select(torch.cat(rows))

    def _sizes(self, draw: float) -> list[int]:
        """Stored images of each class; `draw` from [0, 1) decides the rounding."""
        memory, n_tasks, n_old, n_new = self.settings.memory, len(self.tasks), self.n_old, self.tasks[-1].n_classes
        if memory.mode == "per_class":
            return [memory.size] * self.n_seen
        newest = memory.size / n_tasks
        each_old = (memory.size - newest) / max(1, n_old)
        return rounded([each_old] * n_old + [newest / n_new] * n_new, draw)


def balanced(labels: Tensor) -> Tensor:
    """Sampling probabilities under which all classes that occur are equally likely."""
    weights = 1 / torch.bincount(labels)[labels].double()
    return weights / weights.sum()


def rounded(sizes: Sequence[float], draw: float) -> list[int]:
    """Integers with the same sum, each equal to its size in expectation over `draw`, uniform in [0, 1)."""
    ends = torch.tensor([0.0, *sizes], dtype=torch.float64).cumsum(0)
    ends[-1] = ends[-1].round()  # the sum is an integer up to rounding errors
    integers: list[int] = (ends + draw).floor().diff().int().tolist()
    return integers
