"""Mnemonics (Liu et al. 2020): exemplars are images that are learned. Everything else is iCaRL (icarl.py).

Herding chooses images of the new classes; with the network fixed, their pixels then move so that a classifier built
from them does well on real images.

| `exemplars.version` | the classifier built from exemplars |
|---|---|
| `prototype` | class means; what the authors published and the paper ran, hence the default |
| `bilevel` | the head after a few gradient steps on the exemplars; what Mnemonics' own paper describes |

The bilevel version trains the head only, as an earlier release does; the authors are said to have trained the whole
network. The original rounds the result to bytes, which undoes almost all of it at its own learning rate. Here exemplars
are stored as they are, four bytes a value, and counted as such. Adam has torch's betas here, (0.5, 0.999) there.
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
"""Exemplars move in normalised pixels, `(pixel - CENTRE) / SPREAD`: CIFAR-100's mean and deviation, rounded."""

PORTION = 256
"""More exemplars than these go through the network in portions, and again for the gradient, to save memory."""

ExemplarLoss = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, int], Tensor]
"""How good exemplars are, `(rows -> their features), features of real images, their labels, step -> loss`."""


class ExemplarSettings(Settings):
    """How the pixels of exemplars are learned."""

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
    """From the second task on learn a factor for each convolution kernel instead of the kernel. Published so, for a
    first task of 50 classes; off by default, because here it would freeze what two classes needed."""
    adjust_old: Plan | None = None
    """Let each half of the old exemplars learn from the other, then train so long on exemplars alone. From notes on
    Mnemonics' paper, in neither release and unverified; hence off."""


class Mnemonics(Icarl):
    """iCaRL whose exemplars are optimised before they are stored."""

    name = "mnemonics"
    settings_type = MnemonicsSettings
    settings: MnemonicsSettings

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        if self.settings.weight_transfer and len(self.tasks) == 2:  # once: kernels never learn again, factors go on
            for layer in [module for module in self.backbone.modules() if isinstance(module, nn.Conv2d)]:
                layer.weight.requires_grad_(False)
                parametrize.register_parametrization(layer, "weight", KernelFactors(layer.weight))

    def n_parameters(self) -> int:
        """Factors of kernels can be multiplied into them."""
        factors = [module for module in self.modules() if isinstance(module, KernelFactors)]
        return super().n_parameters() - sum(module.factors.numel() for module in factors)

    def new_data(self, task: Task) -> tuple[Tensor, Tensor]:
        """As numbers in [0, 1], like the exemplars they are joined with."""
        pixels, labels = super().new_data(task)
        return pixels.to(torch.float32) / 255, labels

    def _keep_exemplars(self, task: Task, context: TrainingContext) -> None:
        self.memory.shrink(self.quota)
        best = torch.cat(self.herded(task))
        pixels, labels = self.new_data(task)
        if self.settings.exemplars.version == "prototype":
            loss, real = self._prototype(labels[best]), self.new_and_stored(task)
        else:
            loss, real = self._bilevel(labels[best]), (pixels, labels)
        learned = self._optimised(pixels[best], loss, real, context, "exemplars")
        self.memory.add(len(self.tasks) - 1, learned, task.train.labels[best])
        if self.settings.adjust_old and self.n_old:
            self._adjust_old(self.settings.adjust_old, context)

    def _optimised(
        self, start: Tensor, loss: ExemplarLoss, real: tuple[Tensor, Tensor], context: TrainingContext, phase: str
    ) -> Tensor:
        """Exemplars that began at `start` and went down `loss` over real images; the network does not change."""
        how, (pixels, labels), randomness = self.settings.exemplars, real, self.random(f"{phase} views")
        frozen = teacher_of(self.backbone)
        moving = nn.Parameter((start - CENTRE) / SPREAD)

        def features_of(rows: Tensor) -> Tensor:
            images = to_unit(CENTRE + SPREAD * moving[rows]).contiguous(memory_format=torch.channels_last)
            if len(images) <= PORTION:
                features: Tensor = frozen(images)
                return features
            return torch.cat([checkpoint(frozen, part, use_reentrant=False) for part in torch.split(images, PORTION)])

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(pixels[batch.index]), self.settings.augmentation, randomness)
            queries = frozen(images.contiguous(memory_format=torch.channels_last))
            return loss(features_of, queries, labels[batch.index], batch.step)

        def stay_visible() -> None:
            moving.data.clamp_(-CENTRE / SPREAD, (1 - CENTRE) / SPREAD)

        fit(
            loss_of,
            make_optimiser([(how.optimiser, [moving])]),
            how.plan,
            len(labels),
            self.random(f"{phase} batches"),
            state=[moving, randomness],
            task=len(self.tasks) - 1,
            phase=phase,
            after_step=stay_visible,
            context=context,
        )
        return (CENTRE + SPREAD * moving.detach()).clamp(0, 1)

    def _prototype(self, labels: Tensor) -> ExemplarLoss:
        """Rule 3: all exemplars of the new classes, whose labels these are, are judged by real images old and new."""
        old_means = self.class_means(self.n_old) if self.n_old else self.means[:0]
        everything, new_labels = torch.arange(len(labels), device=labels.device), labels - self.n_old

        def loss(features_of: Callable[[Tensor], Tensor], queries: Tensor, answers: Tensor, step: int) -> Tensor:
            return prototype_loss(features_of(everything), new_labels, old_means, queries, answers)

        return loss

    def _bilevel(self, labels: Tensor) -> ExemplarLoss:
        """Rule 4: the head learns from exemplars, whose labels these are, in turns; then it sees real images."""
        how, sigma = self.settings.exemplars, self.head.get_parameter("sigma").detach()
        rows = torch.cat([part.detach() for part in self.head.parts.parameters()]).requires_grad_()
        places = [(labels == label).nonzero().flatten() for label in torch.unique(labels)]

        def cosines(features: Tensor, rows: Tensor) -> Tensor:
            return sigma * F.linear(F.normalize(features), F.normalize(rows))

        def loss(features_of: Callable[[Tensor], Tensor], queries: Tensor, answers: Tensor, step: int) -> Tensor:
            turns = torch.arange(how.inner_steps, device=labels.device) + step * how.inner_steps
            chosen = torch.stack([place[turns % len(place)] for place in places], 1)  # [steps, classes]
            lessons = torch.split(features_of(chosen.flatten()), len(places))
            taught = taught_rows(rows, zip(lessons, labels[chosen], strict=True), how.inner_lr, cosines)
            return F.cross_entropy(cosines(queries, taught), answers)

        return loss

    def _adjust_old(self, plan: Plan, context: TrainingContext) -> None:
        """Rule 5: halves of the old exemplars by turns are what is learned and what is learned from."""
        labels = self.exemplars()[1]
        ranks = torch.stack([(labels[:place] == label).sum() for place, label in enumerate(labels)])
        for parity in (0, 1):
            half, other = ((labels < self.n_old) & (ranks % 2 == part) for part in (parity, 1 - parity))
            if bool(half.any()) and bool(other.any()):
                real = self.memory.pixels[other], labels[other]
                loss, start = self._bilevel(labels[half]), self.memory.pixels[half]
                self.memory.pixels[half] = self._optimised(start, loss, real, context, f"old exemplars {parity}")

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(images), labels)

        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        how = self.settings.model_copy(update={"plan": plan})
        self.train_on(*self.exemplars(), loss_of, trained, context, how=how, phase="balancing")


class KernelFactors(nn.Module):
    """One learned factor for each kernel, so for each pair of output and input channel (weight transfer)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones_like(weight[:, :, :1, :1]))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factors


def prototype_loss(features: Tensor, labels: Tensor, old_means: Tensor, queries: Tensor, answers: Tensor) -> Tensor:
    """Cross-entropy of queries by their cosines to the old means and to the means of the exemplars' features.

    `labels` of the exemplars count from 0 within the new task; `answers` count through all tasks.
    """
    new_means = torch.stack([features[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    means = torch.cat([old_means, new_means])
    return F.cross_entropy(F.linear(F.normalize(queries), F.normalize(means)), answers)


def taught_rows(
    rows: Tensor, lessons: Iterable[tuple[Tensor, Tensor]], lr: float, outputs: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """A head's rows after one gradient step per lesson; a function of the lessons' features that has a gradient."""
    for features, labels in lessons:
        loss = F.cross_entropy(outputs(features, rows), labels)
        (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
        rows = rows - lr * gradient
    return rows
