"""BiC: replay and distillation, then two parameters per task that correct the bias towards the newest classes.

Wu et al., Large Scale Incremental Learning, CVPR 2019. n classes are old, m are new; o are the outputs of the head and
q[:, S_k] = alpha_k o[:, S_k] + beta_k the corrected outputs of the classes S_k of task k. Where implementations differ:

| choice | default | reason |
|---|---|---|
| weight of distillation | `paper`: lambda = n / (n + m) | `repo`: always T^2, as in the code that the CLOM paper used |
| corrections of past tasks | applied in teacher, training and test | as in the code that the CLOM paper used |
| validation images | never trained on | the new classes would seem too confident (`leak_validation`) |
| training exemplars | herding | 56.69 against 55.55 with random ones in the BiC paper |
| old images per class | floor(.9 K / C) for training, floor(.1 K / C) for validation | the best split in the paper |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.memory import Memory
from clom.data.stratified import hold_out
from clom.data.stream import Task
from clom.data.views import augment
from clom.errors import UserError
from clom.learning.calibration import Affine
from clom.learning.context import TrainingContext
from clom.learning.distillation import soft_cross_entropy, teacher_of
from clom.learning.loop import Batch, Plan, fit
from clom.learning.nearest_mean import herd
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.families.replay import MemorySettings, ReplayMethod, ReplaySettings
from clom.nets import NetSettings
from clom.settings import NonNegative, PositiveNumber, Settings

KdWeight = Literal["paper", "repo"]
SMALLEST_SCALE = 1e-2
"""A positive alpha never changes a TIL prediction."""


class CorrectionSettings(Settings):
    """Stage 2. Use no weight decay: it would pull alpha to 0 instead of 1."""

    plan: Plan = Plan(epochs=250, batch=100, schedule=Schedule(kind="constant"))
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    shift_penalty: NonNegative = 0.0
    """Adds `shift_penalty * beta^2 / 2`; 0.1 in the authors' code according to ports of it (not verified)."""


class BicSettings(ReplaySettings):
    temperature: PositiveNumber = 2.0
    kd_weight: KdWeight = "paper"
    leak_validation: bool = False
    """Also train on the new classes' validation images, to reproduce the code that the CLOM paper used."""
    selection: Literal["herding", "random"] = "herding"
    correction: CorrectionSettings = CorrectionSettings()


class Bic(ReplayMethod):
    """Blocks are the head's outputs; the bias correction is offered as a calibration."""

    name = "bic"
    settings_type = BicSettings
    settings: BicSettings

    def __init__(self, net: NetSettings, settings: BicSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.held_out = Memory()  # validation images, the same number of each class
        self.corrections = nn.ParameterList()  # (alpha, beta) of each task

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes + self.held_out.n_bytes

    @property
    def quota(self) -> int:
        return self.shares[0]

    @property
    def shares(self) -> tuple[int, int]:
        """Stored images per class for training and for validation."""
        return shares(self.settings.memory, self.n_seen)

    def calibrations(self) -> Mapping[str, Affine]:
        return {"bias correction": self.correction().to(torch.device("cpu")), "none": Affine.identity(len(self.tasks))}

    def correction(self) -> Affine:
        if not self.tasks:
            return Affine.identity(0)
        scales, shifts = torch.stack(list(self.corrections)).unbind(1)
        return Affine(scales, shifts)

    def corrected(self, outputs: Tensor) -> Tensor:
        """q of o, for all classes seen so far."""
        blocks = torch.split(outputs, [task.n_classes for task in self.tasks], 1)
        return torch.cat(self.correction()(blocks), 1)

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        # alpha = 1 and beta = 0: until stage 2, and always for the first task.
        self.corrections.append(nn.Parameter(torch.tensor([1.0, 0.0]), requires_grad=False))

    def _learn(self, task: Task, context: TrainingContext) -> None:
        training, validating = self._split(task)
        self._learn_network(task, training if not self.settings.leak_validation else training + validating, context)
        ranked = [rows[self._ranking(task.train.pixels[rows])] for rows in training]
        self.keep(task, [rows[: self.quota] for rows in ranked])
        self._hold_out(task, torch.cat(validating))
        if len(self.tasks) > 1 and len(self.held_out):
            self.correct_bias(context)

    def _split(self, task: Task) -> tuple[list[Tensor], list[Tensor]]:
        """Rows of each class for training and for validation: as many as will be stored, but at most a tenth."""
        most, labels = self.shares[1], task.train.labels
        drawn = hold_out(labels, task.n_classes, lambda n: min(most, max(1, n // 10)), self.random("validation"))
        for name, (train, held) in zip(task.class_names, drawn, strict=True):
            if not len(train):
                raise UserError(f"BiC needs at least two images per class, one to validate; '{name}' has {len(held)}.")
        return [train for train, _ in drawn], [held for _, held in drawn]

    def _learn_network(self, task: Task, rows: Sequence[Tensor], context: TrainingContext) -> None:
        """Stage 1: train on new images and exemplars, with distillation from the corrected old network."""
        teacher, n_old = teacher_of(self), self.n_old
        pixels, labels = self.new_data(task)
        chosen = torch.cat(list(rows))
        pixels, labels = pixels[chosen], labels[chosen]
        if len(self.memory):
            stored_pixels, stored_labels = self.exemplars()
            pixels, labels = torch.cat([pixels, stored_pixels]), torch.cat([labels, stored_labels])

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            outputs = self.corrected(self.logits(images))  # the newest task's correction is still the identity
            if not n_old:
                return F.cross_entropy(outputs, labels)
            with torch.no_grad():
                old = teacher.corrected(teacher.logits(images))[:, :n_old]
            return stage_one_loss(outputs, old, labels, self.settings.temperature, self.settings.kd_weight)

        self.train_on(pixels, labels, loss_of, [*self.backbone.parameters(), *self.head.parameters()], context)

    def _ranking(self, pixels: Tensor) -> Tensor:
        """The images of one class by priority for storage."""
        if self.settings.selection == "random":
            return torch.arange(len(pixels), device=pixels.device)  # shuffled when they were split
        return herd(self.embed(pixels), self.quota)

    def _hold_out(self, task: Task, rows: Tensor) -> None:
        """Store the new validation images, balanced over classes: otherwise beta would learn class frequencies."""
        self.held_out.add(len(self.tasks) - 1, task.train.pixels[rows], task.train.labels[rows])
        numbers = self.held_out.labels + self.offsets()[self.held_out.tasks]
        fewest = int(torch.bincount(numbers, minlength=self.n_seen).min())
        self.held_out.shrink(min(self.shares[1], fewest))

    def correct_bias(self, context: TrainingContext) -> None:
        """Stage 2: fit alpha and beta of the newest task; the network is frozen and in evaluation mode."""
        settings = self.settings.correction
        pixels, labels = self.held_out.pixels, self.held_out.labels + self.offsets()[self.held_out.tasks]
        newest = self.corrections[-1].requires_grad_(True)
        views = self.random("correction views")

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(pixels[batch.index]), self.settings.augmentation, views)
            with torch.no_grad():
                outputs = self.logits(images.contiguous(memory_format=torch.channels_last))
            penalty: Tensor = settings.shift_penalty * newest[1].square() / 2
            return F.cross_entropy(self.corrected(outputs), labels[batch.index]) + penalty

        def keep_positive() -> None:
            newest.data[0].clamp_(min=SMALLEST_SCALE)

        fit(
            loss_of,
            make_optimiser([(settings.optimiser, [newest])]),
            settings.plan,
            len(labels),
            self.random("correction batches"),
            state=[views],
            task=len(self.tasks) - 1,
            phase="bias correction",
            after_step=keep_positive,
            context=context,
        )
        newest.requires_grad_(False)
        newest.grad = None


def stage_one_loss(new: Tensor, old: Tensor, labels: Tensor, temperature: float, kd_weight: KdWeight) -> Tensor:
    """`lambda L_d + (1 - lambda) L_c`, or `T^2 L_d + (1 - lambda) L_c` for `kd_weight="repo"`."""
    n_old = old.shape[1]
    old_share = n_old / new.shape[1]  # lambda
    distillation = soft_cross_entropy(new[:, :n_old], old, temperature)  # L_d
    weight = old_share if kd_weight == "paper" else temperature**2
    return weight * distillation + (1 - old_share) * F.cross_entropy(new, labels)


def shares(memory: MemorySettings, n_classes: int) -> tuple[int, int]:
    """Images per class for training and validation, 9:1, both rounded down, with at least one for validation."""
    tenths = 10 * (n_classes if memory.mode == "total" else 1)
    quota = 10 * memory.size // tenths
    validation = min(max(1, memory.size // tenths), quota)
    return min(9 * memory.size // tenths, quota - validation), validation
