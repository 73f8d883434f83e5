"""Mnemonics (Liu et al. 2020): iCaRL (icarl.py) with learned exemplars.

Herding selects images of the new classes; with the network frozen, their pixels are then optimised so that a classifier
built from them does well on real images.

| `exemplars.version` | the classifier built from exemplars |
|---|---|
| `prototype` | class means; as in the released code, which the paper used, hence the default |
| `bilevel` | the head after a few gradient steps on the exemplars; as described in the Mnemonics paper |

The bilevel version trains only the head, as an earlier release does; the authors are said to have trained the whole
network. The original rounds exemplars to bytes, which undoes almost all changes at its learning rate. Here they are
stored as float32 and counted as such. Adam has torch's default betas here, (0.5, 0.999) in the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import augment
from clom.learning.context import TrainingContext
from clom.learning.distillation import teacher_of
from clom.learning.loop import Batch, Plan, fit
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.icarl import Icarl, IcarlSettings
from clom.settings import NonNegative, Positive, Settings

CENTRE, SPREAD = 0.5, 0.2
"""Optimised pixels are normalised, `(pixel - CENTRE) / SPREAD`: CIFAR-100's mean and deviation, rounded."""

BATCH = 256
"""Beyond this number, exemplars pass through the network in batches with activation checkpointing, to save memory."""

ExemplarLoss = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, int], Tensor]
"""The loss of exemplars: `(rows -> their features), features of real images, their labels, step -> loss`."""


class ExemplarSettings(Settings):
    """How the pixels of exemplars are optimised."""

    version: Literal["prototype", "bilevel"] = "prototype"
    plan: Plan = Plan(epochs=3, batch=64, schedule=Schedule(kind="constant"))
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-2)
    inner_steps: Positive = 20
    """`bilevel`: R, how many steps the head takes, each on one exemplar of every class."""
    inner_lr: NonNegative = 0.1
    """`bilevel`: a2, the head's learning rate."""


class MnemonicsSettings(IcarlSettings):
    variant: Literal["liu"] = "liu"
    exemplars: ExemplarSettings = ExemplarSettings()
    weight_transfer: bool = False
    """From the second task on, learn a factor per convolution kernel instead of the kernels. As published, for a first
    task of 50 classes; off by default, because here it would freeze kernels learned from two classes."""
    adjust_old: Plan | None = None
    """Optimise each half of the old exemplars on the other half, then train on exemplars alone with this plan. From
    notes on the Mnemonics paper, in neither release and unverified; hence off."""


class Mnemonics(Icarl):
    """iCaRL whose exemplars are optimised before they are stored."""

    name = "mnemonics"
    settings_type = MnemonicsSettings
    settings: MnemonicsSettings

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        if self.settings.weight_transfer and len(self.tasks) == 2:  # from now on only the factors are trained
            for layer in [module for module in self.backbone.modules() if isinstance(module, nn.Conv2d)]:
                layer.weight.requires_grad_(False)
                parametrize.register_parametrization(layer, "weight", KernelFactors(layer.weight))

    def n_parameters(self) -> int:
        """Without the kernel factors, which can be folded into the kernels."""
        factors = [module for module in self.modules() if isinstance(module, KernelFactors)]
        return super().n_parameters() - sum(module.factors.numel() for module in factors)

    def new_data(self, task: Task) -> tuple[Tensor, Tensor]:
        """Pixels as floats in [0, 1], like the exemplars they are concatenated with."""
        pixels, labels = super().new_data(task)
        return pixels.to(torch.float32) / 255, labels

    def _keep_exemplars(self, task: Task, context: TrainingContext) -> None:
        new_and_stored = self.new_and_stored(task)  # all that the network was trained on, before the memory shrinks
        self.memory.shrink(self.quota)
        best = torch.cat(self.herded(task))
        pixels, labels = self.new_data(task)
        if self.settings.exemplars.version == "prototype":
            loss, real = self._prototype(labels[best]), new_and_stored
        else:
            loss, real = self._bilevel(labels[best]), (pixels, labels)
        learned = self._optimised(pixels[best], loss, real, context, "exemplars")
        self.memory.add(len(self.tasks) - 1, learned, task.train.labels[best])
        if self.settings.adjust_old and self.n_old:
            self._adjust_old(self.settings.adjust_old, context)

    def _optimised(
        self, start: Tensor, loss: ExemplarLoss, real: tuple[Tensor, Tensor], context: TrainingContext, phase: str
    ) -> Tensor:
        """Exemplars that minimise `loss` over real images, starting from `start`; the network does not change."""
        settings, (pixels, labels), randomness = self.settings.exemplars, real, self.random(f"{phase} views")
        backbone = teacher_of(self.backbone)
        exemplars = nn.Parameter((start - CENTRE) / SPREAD)

        def features_of(rows: Tensor) -> Tensor:
            images = to_unit(CENTRE + SPREAD * exemplars[rows]).contiguous(memory_format=torch.channels_last)
            if len(images) <= BATCH:
                features: Tensor = backbone(images)
                return features
            return torch.cat([checkpoint(backbone, batch, use_reentrant=False) for batch in torch.split(images, BATCH)])

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(pixels[batch.index]), self.settings.augmentation, randomness)
            queries = backbone(images.contiguous(memory_format=torch.channels_last))
            return loss(features_of, queries, labels[batch.index], batch.step)

        def clamp_to_pixel_range() -> None:
            exemplars.data.clamp_(-CENTRE / SPREAD, (1 - CENTRE) / SPREAD)

        fit(
            loss_of,
            make_optimiser([(settings.optimiser, [exemplars])]),
            settings.plan,
            len(labels),
            self.random(f"{phase} batches"),
            state=[exemplars, randomness],
            task=len(self.tasks) - 1,
            phase=phase,
            after_step=clamp_to_pixel_range,
            context=context,
        )
        return (CENTRE + SPREAD * exemplars.detach()).clamp(0, 1)

    def _prototype(self, labels: Tensor) -> ExemplarLoss:
        """The new classes' exemplars, with these labels, are evaluated on real images of old and new classes."""
        old_means = self.class_means(self.n_old) if self.n_old else self.means[:0]
        all_rows, new_labels = torch.arange(len(labels), device=labels.device), labels - self.n_old

        def loss(features_of: Callable[[Tensor], Tensor], queries: Tensor, targets: Tensor, step: int) -> Tensor:
            return prototype_loss(features_of(all_rows), new_labels, old_means, queries, targets)

        return loss

    def _bilevel(self, labels: Tensor) -> ExemplarLoss:
        """The head takes gradient steps on exemplars, with these labels, and is evaluated on real images."""
        settings, sigma = self.settings.exemplars, self.head.get_parameter("sigma").detach()
        rows = torch.cat([part.detach() for part in self.head.parts.parameters()]).requires_grad_()
        rows_of_class = [(labels == label).nonzero().flatten() for label in torch.unique(labels)]

        def cosines(features: Tensor, rows: Tensor) -> Tensor:
            return sigma * F.linear(F.normalize(features), F.normalize(rows))

        def loss(features_of: Callable[[Tensor], Tensor], queries: Tensor, targets: Tensor, step: int) -> Tensor:
            inner_steps = torch.arange(settings.inner_steps, device=labels.device) + step * settings.inner_steps
            chosen = torch.stack([own[inner_steps % len(own)] for own in rows_of_class], 1)  # [steps, classes]
            batches = torch.split(features_of(chosen.flatten()), len(rows_of_class))
            updated = updated_rows(rows, zip(batches, labels[chosen], strict=True), settings.inner_lr, cosines)
            return F.cross_entropy(cosines(queries, updated), targets)

        return loss

    def _adjust_old(self, plan: Plan, context: TrainingContext) -> None:
        """Each half of the old exemplars is optimised on the other half."""
        labels = self.exemplars()[1]
        ranks = torch.stack([(labels[:row] == label).sum() for row, label in enumerate(labels)])
        for parity in (0, 1):
            half, other = ((labels < self.n_old) & (ranks % 2 == rest) for rest in (parity, 1 - parity))
            if bool(half.any()) and bool(other.any()):
                real = self.memory.pixels[other], labels[other]
                loss, start = self._bilevel(labels[half]), self.memory.pixels[half]
                self.memory.pixels[half] = self._optimised(start, loss, real, context, f"old exemplars {parity}")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(images), labels)

        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        settings = self.settings.model_copy(update={"plan": plan})
        self.train_on(*self.exemplars(), loss_of, trained, context, settings=settings, phase="balancing")


class KernelFactors(nn.Module):
    """One learned factor per kernel, that is per pair of output and input channel (weight transfer)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones_like(weight[:, :, :1, :1]))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factors


def prototype_loss(features: Tensor, labels: Tensor, old_means: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the cosines of queries to the old means and to the means of the exemplars' features.

    `labels` of the exemplars count from 0 within the new task; `targets` are labels over all tasks.
    """
    new_means = torch.stack([features[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    means = torch.cat([old_means, new_means])
    return F.cross_entropy(F.linear(F.normalize(queries), F.normalize(means)), targets)


def updated_rows(
    rows: Tensor, batches: Iterable[tuple[Tensor, Tensor]], lr: float, outputs: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """A head's rows after one gradient step per batch, differentiable in the features of the batches."""
    for features, labels in batches:
        loss = F.cross_entropy(outputs(features, rows), labels)
        (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
        rows = rows - lr * gradient
    return rows
