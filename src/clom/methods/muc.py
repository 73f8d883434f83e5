"""MUC-LwF (Liu et al., ECCV 2020): distilling several classifiers of the last task preserves features better than one.

After each task, `sides` side classifiers are trained on the frozen features: correct on the task's images and as
different as possible on unlabelled auxiliary images. While the next task is learned, the main outputs of all old
classes and the side outputs of the last task are distilled from the network before it. No image is stored.

The cross-entropy is over the new task's classes alone, so classes of different tasks are never compared: TIL is high
and CIL is low. Side classifiers of older tasks are no longer distilled; weight decay erodes them in the published code,
here they stay unchanged, which affects no main output.

The published code uses SVHN as auxiliary images. Here they are a setting, recorded with every run; the default is made
from the task's own images and needs no download. The CLOM paper names neither its auxiliary images nor the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data import catalog
from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import augment
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.distillation import soft_cross_entropy, teacher_of
from clom.learning.loop import Batch, Plan, fit
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.methods.families.base import LearnedTask
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings
from clom.nets.plain import LinearHead
from clom.settings import Positive, PositiveNumber, Settings

Draw = Callable[[Tensor], Tensor]
"""From a batch of the task's uint8 images to as many auxiliary images in [0, 1] of the same size."""


class SideTraining(Settings):
    """Stage 3: training of the side classifiers."""

    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=2e-3)


class MucSettings(SharedSettings):
    """The inherited settings are those of stage 1, which trains the network and its main head."""

    sides: Positive = 3
    """Side classifiers per task; a single one has no discrepancy and is not distilled."""
    side_training: SideTraining = SideTraining()
    temperature: PositiveNumber = 2.0
    ood: str = "shuffled-patches"
    """The auxiliary images: `noise`, `shuffled-patches`, or a data set, found like the experiment's own."""
    predict_with: Literal["main", "side", "both"] = "main"
    """`main`: as published; `side`: the sum of a class's side outputs; `both`: the main output plus their mean."""


def discrepancy(outputs: Tensor) -> Tensor:
    """The second term of stage 3, for `[n, sides, classes]`: mean absolute difference of probabilities, summed over
    pairs of classifiers."""
    probabilities = outputs.softmax(2)
    pairs = combinations(range(outputs.shape[1]), 2)
    differences = [(probabilities[:, first] - probabilities[:, second]).abs().mean() for first, second in pairs]
    return torch.stack(differences).sum() if differences else outputs.new_zeros(())


def side_loss(outputs: Tensor, labels: Tensor, auxiliary_outputs: Tensor) -> Tensor:
    """Stage 3: cross-entropy on the task, summed over the sides, minus the discrepancy on auxiliary images."""
    by_side = [F.cross_entropy(outputs[:, side], labels) for side in range(outputs.shape[1])]
    return torch.stack(by_side).sum() - discrepancy(auxiliary_outputs)


def side_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KD_s of `[n, sides, classes]`: the mean over the sides; zero for a single side, as published."""
    n_sides = student.shape[1]
    if n_sides == 1:
        return student.new_zeros(())
    terms = [soft_cross_entropy(student[:, side], teacher[:, side], temperature) for side in range(n_sides)]
    return torch.stack(terms).mean()


def stage_one_loss(new: Tensor, old: Tensor | float, n_learned: int) -> Tensor:
    """`(1 - a) CE + a (KD_m + KD_s)` with `a = t / (t + 1)` after t learned tasks."""
    share = n_learned / (n_learned + 1)
    return (1 - share) * new + share * old


class Muc(SharedNetwork):
    """LwF on the main head and on the side heads of the previous task."""

    name = "muc"
    settings_type = MucSettings
    settings: MucSettings
    read_by_scores = ("backbone", "head", "side")
    least_classes = 2  # its cross-entropy is over the classes of the new task alone

    def __init__(self, net: NetSettings, settings: MucSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        # Ordered by task, classifier, class: for tasks of equal size, (task, k, c) is output (task K + k) C + c.
        self.side = LinearHead(self.backbone.n_features)

    def _open_task(self, task: LearnedTask) -> None:
        self.side.grow(self.settings.sides * task.n_classes)
        super()._open_task(task)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        draws = self.random("other images")
        draw = auxiliary_images(self.settings.ood, task, draws, context.data)  # first: the data set may be missing
        trained = [*self.backbone.parameters(), *self.head.parameters(), *self._last_sides()]
        self.train_on(*self.new_data(task), self._stage_one(), trained, context)
        self._train_sides(task, draw, draws, context)

    def _last_sides(self) -> list[torch.nn.Parameter]:
        return list(self.side.parts[-2].parameters()) if len(self.tasks) > 1 else []

    def sides(self, features: Tensor, task: int) -> Tensor:
        """The side outputs of one task, `[n, sides, classes]`."""
        outputs: Tensor = self.side.parts[task](features)
        return outputs.view(len(features), self.settings.sides, self.tasks[task].n_classes)

    def _stage_one(self) -> Callable[[Tensor, Tensor], Tensor]:
        n_old, n_learned, tau = self.n_old, len(self.tasks) - 1, self.settings.temperature
        teacher = teacher_of(self)

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            features = self.backbone(images)
            outputs = self.head(features)
            new = F.cross_entropy(outputs[:, n_old:], labels - n_old)
            if not n_learned:
                return new
            with torch.no_grad():
                old_features = teacher.backbone(images)
                old_outputs, old_sides = teacher.head(old_features), teacher.sides(old_features, n_learned - 1)
            main = soft_cross_entropy(outputs[:, :n_old], old_outputs[:, :n_old], tau)
            side = side_distillation(self.sides(features, n_learned - 1), old_sides, tau)
            return stage_one_loss(new, main + side, n_learned)

        return loss_of

    def _train_sides(self, task: Task, draw: Draw, draws: torch.Generator, context: TrainingContext) -> None:
        """Stage 3, in evaluation mode: the network, its statistics and all other heads stay bit-identical."""
        settings, number, views = self.settings.side_training, len(self.tasks) - 1, self.random("side views")

        def outputs_of(images: Tensor) -> Tensor:
            images = augment(images, self.settings.augmentation, views)
            with torch.no_grad():
                features = self.backbone(images.contiguous(memory_format=torch.channels_last))
            return self.sides(features, number)

        def loss_of(batch: Batch) -> Tensor:
            pixels = task.train.pixels[batch.index]
            return side_loss(outputs_of(to_unit(pixels)), task.train.labels[batch.index], outputs_of(draw(pixels)))

        fit(
            loss_of,
            make_optimiser([(settings.optimiser, list(self.side.parts[-1].parameters()))]),
            settings.plan,
            len(task.train),
            self.random("side batches"),
            state=[views, draws],
            task=number,
            phase="sides",
            context=context,
        )

    def scores(self, pixels: Tensor) -> Tensor:
        features, predict_with = self.embed(pixels), self.settings.predict_with
        main: Tensor = self.head(features)
        if predict_with == "main":
            return main
        sides = torch.cat([self.sides(features, task).sum(1) for task in range(len(self.tasks))], 1)
        return sides if predict_with == "side" else main + sides / self.settings.sides


def auxiliary_images(name: str, task: Task, randomness: torch.Generator, folder: Path | None = None) -> Draw:
    """A source of auxiliary images; a data set, looked for in `folder` first, that contains images of the task is
    refused."""
    if name == "noise":
        return lambda pixels: torch.rand(len(pixels), 3, *pixels.shape[2:], generator=randomness).to(pixels.device)
    if name == "shuffled-patches":
        return lambda pixels: shuffled_patches(to_unit(pixels), randomness)
    found = catalog.load(name, folder)
    pool = found.train.pixels if len(found.train) else found.test.pixels
    if _share_an_image(pool, task.train.pixels.cpu()):
        raise UserError(f"ood is '{name}', which contains images of task '{task.name}': choose another data set.")

    def draw(pixels: Tensor) -> Tensor:
        rows = torch.randint(len(pool), (len(pixels),), generator=randomness)
        size = list(pixels.shape[2:])
        return F.interpolate(to_unit(pool[rows].to(pixels.device)), size, mode="bilinear", antialias=True).clamp(0, 1)

    return draw


def shuffled_patches(images: Tensor, randomness: torch.Generator, wanted: int = 4) -> Tensor:
    """Each image cut into a grid of `wanted` x `wanted` patches, or the next finer grid that fits, and shuffled."""
    size = images.shape[-1]
    grid = next(count for count in range(min(wanted, size), size + 1) if size % count == 0)
    patches = F.unfold(images, size // grid, stride=size // grid)
    order = torch.rand(len(images), 1, grid * grid, generator=randomness).argsort(2).to(images.device)
    shuffled = patches.gather(2, order.expand_as(patches))
    return F.fold(shuffled, size, size // grid, stride=size // grid)


def _share_an_image(some: Tensor, others: Tensor) -> bool:
    if some.shape[1:] != others.shape[1:]:
        return False
    known = {image.numpy().tobytes() for image in some}
    return any(image.numpy().tobytes() in known for image in others)
