"""Co2L: a contrastive representation that is kept by distilling similarities, and a linear read-out made anew."""

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
    """The defaults are the original code's for CIFAR-10, but for `teacher_bn` and `head`.

    `memory.rounding` has no say: sizes are rounded at random, so that the memory is always full.
    """

    first_epochs: Positive | None = None
    """Epochs of the first task; the original trains it five times as long as later ones. By default the same."""
    projection: Positive = 128
    temperature: PositiveNumber = 0.5
    base_temperature: PositiveNumber = 0.07
    """L_asym is multiplied by `temperature / base_temperature`, about 7, and L_ird is not."""
    distillation: NonNegative = 1.0
    """lambda: weight of L_ird."""
    similarity_temperature: PositiveNumber = 0.2
    """kappa, of the network being trained."""
    past_temperature: PositiveNumber = 0.01
    """kappa*, of the network before the task."""
    teacher_bn: Literal["eval", "batch"] = "eval"
    """`eval`: the old network as it answers. `batch`: as it trains, which the original code does by oversight."""
    head: HeadSettings | SgdHeadSettings = HeadSettings()
    """Solved on features that are taken once (the default: exact and fast), or trained by SGD on fresh views."""


class Co2L(ReplayMethod):
    """Cha, Lee, Shin: Co2L: Contrastive Continual Learning, ICCV 2021.

    It differs from the original code in this: every task has an optimiser of its own (there momentum survives), the
    cosine ends at 0 (there at a thousandth), and the classifier grows with the classes. The values for CIFAR-100 and
    Tiny-ImageNet are from public scripts, not from the paper.
    """

    name = "co2l"
    settings_type = Co2LSettings
    settings: Co2LSettings

    def __init__(self, net: NetSettings, settings: Co2LSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        with seeded(seed, "projection"):  # kept between tasks: the old similarities are those of its outputs
            self.projection = Projection(self.backbone.n_features, settings.projection)

    def n_parameters(self) -> int:
        """Without the projection, which answers do not need."""
        return sum(p.numel() for part in (self.backbone, self.head) for p in part.parameters())

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pixels, labels = self.new_and_stored(task)
        self._learn_representation(pixels, labels, context)
        self._learn_head(pixels, labels, context)
        # Only now: the classifier of a task sees the memory as it was before the task.
        self._refill(task)

    def _learn_representation(self, pixels: Tensor, labels: Tensor, context: TrainingContext) -> None:
        how, first, n_old = self.settings, len(self.tasks) == 1, self.n_old
        if first and how.first_epochs:
            how = how.model_copy(update={"plan": how.plan.model_copy(update={"epochs": how.first_epochs})})
        network = nn.Sequential(self.backbone, self.projection)
        teacher = teacher_of(network).train(how.teacher_bn == "batch")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            z = F.normalize(network(images))
            loss = asymmetric_contrastive(z, labels, labels >= n_old, how.temperature, how.base_temperature)
            if first:
                return loss
            with torch.no_grad():
                past = F.normalize(teacher(images))
            kept = relation_distillation(z, past, how.similarity_temperature, how.past_temperature)
            return loss + how.distillation * kept  # L = L_asym + lambda L_ird

        self.train_on(pixels, labels, loss_of, list(network.parameters()), context, how=how, views=2)

    def _learn_head(self, pixels: Tensor, labels: Tensor, context: TrainingContext) -> None:
        """A new classifier on the encoder's own features, neither projected nor normalised, with balanced classes."""
        how = self.settings.head
        if isinstance(how, SgdHeadSettings):
            head = self._train_head(how, pixels, labels, context)
        else:
            head = self._solve_head(how, pixels, labels)
        with torch.no_grad():
            for part, offset in zip(self.head.parts, self.offsets().tolist(), strict=True):
                rows = slice(offset, offset + part.out_features)
                part.weight.copy_(head.weight[rows])
                part.bias.copy_(head.bias[rows])

    def _solve_head(self, how: HeadSettings, pixels: Tensor, labels: Tensor) -> nn.Linear:
        """Weighting the classes is the balanced draw's expectation, so what is solved is what SGD would approach."""
        randomness = self.random("head views")
        views = [self._view_features(pixels, randomness) for _ in range(how.views)]
        weights = 1 / torch.bincount(labels, minlength=self.n_seen).clamp(min=1)
        return solve_head(torch.cat(views), labels.repeat(how.views), self.n_seen, how, weights)

    def _train_head(self, how: SgdHeadSettings, pixels: Tensor, labels: Tensor, context: TrainingContext) -> nn.Linear:
        """As published: an epoch is as many draws as there are images, of every class equally many on average."""
        head = nn.Linear(self.backbone.n_features, self.n_seen).to(labels.device)
        chances, draws, randomness = balanced(labels.cpu()), self.random("head draws"), self.random("head views")

        def loss_of(batch: Batch) -> Tensor:
            drawn = torch.multinomial(chances, len(batch.index), replacement=True, generator=draws).to(labels.device)
            return F.cross_entropy(head(self._view_features(pixels[drawn], randomness)), labels[drawn])

        optimiser = make_optimiser([(how.optimiser, list(head.parameters()))])
        order, number = self.random("head batches"), len(self.tasks) - 1
        state: list[State] = [head, draws, randomness]
        fit(loss_of, optimiser, how.plan, len(labels), order, state=state, task=number, phase="head", context=context)
        return head

    def _view_features(self, pixels: Tensor, randomness: torch.Generator) -> Tensor:
        """Frozen features of one augmented view of each image."""
        how = self.settings.augmentation
        return torch.cat([self.embed(augment(to_unit(part), how, randomness)) for part in torch.split(pixels, 256)])

    def _refill(self, task: Task) -> None:
        """Each of the t tasks so far gets 1/t of the memory: old classes drop images at random, the new ones fill up.

        Images of a class are stored in random order, so that dropping the last ones is dropping at random.
        """
        chance = self.random("memory")
        order = torch.randperm(len(task.train), generator=chance).to(task.train.labels.device)
        self.memory.add(len(self.tasks) - 1, task.train.pixels[order], task.train.labels[order])
        _, labels = self.exemplars()
        sizes = self._sizes(torch.rand(1, generator=chance).item())
        rows = [(labels == label).nonzero().flatten()[:size] for label, size in enumerate(sizes)]
        self.memory.select(torch.cat(rows))

    def _sizes(self, chance: float) -> list[int]:
        """How many images of each class are kept, given a number drawn from [0, 1)."""
        memory, n_tasks, n_old, n_new = self.settings.memory, len(self.tasks), self.n_old, self.tasks[-1].n_classes
        if memory.mode == "per_class":
            return [memory.size] * self.n_seen
        newest = memory.size / n_tasks
        each_old = (memory.size - newest) / max(1, n_old)
        return rounded([each_old] * n_old + [newest / n_new] * n_new, chance)


def balanced(labels: Tensor) -> Tensor:
    """The chance of each sample when all classes that occur are drawn equally often."""
    each = 1 / torch.bincount(labels)[labels].double()
    return each / each.sum()


def rounded(sizes: Sequence[float], chance: float) -> list[int]:
    """Whole numbers with the same sum, each as large as its size on average over `chance`, uniform in [0, 1)."""
    ends = torch.tensor([0.0, *sizes], dtype=torch.float64).cumsum(0)
    ends[-1] = ends[-1].round()  # the sum is whole but for rounding errors
    whole: list[int] = (ends + chance).floor().diff().int().tolist()
    return whole
