"""RPS-Net, random path selection (Rajasegaran et al. 2019, Random Path Selection for Continual Learning).

A group of tasks trains one random path through a network of parallel modules; modules of earlier paths are frozen and
stay in use. Exemplars and distillation with a growing weight protect what remains trainable: skips and classifier.

The CLOM paper prints numbers of A-RPS, its adaptive successor (arXiv 1906.01120v3): 60.8 and 53.5 on CIFAR-100. A-RPS
adds a measure of capacity that decides when to switch paths and an attention over paths by their peak response. No code
of these was released and their formulas could not be obtained, so this is RPS-Net and named so. The method keeps the
name `a-rps`, under which models and runs are stored. `fisher_capacity` is a switching rule of our own.

| RPS-Net's code | here | reason |
|---|---|---|
| the teacher includes the new path | previous paths only | untrained modules would corrupt the targets |
| frozen modules use batch statistics | evaluation mode | their running statistics would drift |
| best epoch and candidate by test accuracy | last epoch; best on validation images | no selection on test data |
| level 7 without its skip | with it, as levels 2, 3, 5, 9 | probably an oversight |
| rotation by up to 10 degrees | shift and flip only | `Augmentation` has no small rotations |
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.distillation import soft_kl, teacher_of
from clom.methods.a_rps.paths import PathNet, PathSettings, draw_path
from clom.methods.a_rps.switching import Interval, Switching
from clom.methods.families.base import place
from clom.methods.families.replay import ReplayMethod, ReplaySettings
from clom.methods.families.shared import FullHeadNetwork, FullHeadSettings, LossOf
from clom.nets import NetSettings
from clom.nets.plain import LinearHead
from clom.settings import NonNegative, Positive

TEMPERATURE = 2.0


class ARpsSettings(ReplaySettings, FullHeadSettings):
    paths: PathSettings = PathSettings()
    """The network, used instead of the experiment's."""
    switching: Switching = Interval()
    prefer_free: bool = False
    """Draw unused modules while a level has any (ours). RPS-Net draws from all modules."""
    candidates: Positive = 1
    """G: candidates trained for every task, of which the best is used. RPS-Net trains 8, at 8 times the cost."""
    distill: Literal["repo", "kl_old"] = "repo"
    """`repo`: as in the public code. `kl_old`: KL divergence over the old classes, averaged over the batch."""
    gamma: NonNegative = 2.5
    """Growth of the distillation weight per task after J tasks; J is the `interval` of `switching`."""
    repeat_exemplars: Positive = 1
    """Copies of each exemplar per epoch: 1 in RPS-Net's CIFAR script, 10 in its MNIST script."""


@dataclass(frozen=True)
class _Candidate:
    """A trained network and its accuracy on held-out images."""

    accuracy: float
    backbone: PathNet
    head: LinearHead


class ARps(FullHeadNetwork, ReplayMethod):
    """Random paths, exemplars, distillation."""

    name = "a-rps"
    work_depends_on_seed = True  # of the modules that its random paths share
    settings_type = ARpsSettings
    settings: ARpsSettings
    backbone: PathNet  # type: ignore[assignment]  # not the experiment's network
    age: Tensor
    switch_due: Tensor

    def __init__(self, net: NetSettings, settings: ARpsSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("age", torch.tensor(0))  # tasks learned on the current path
        self.register_buffer("switch_due", torch.tensor(False))  # whether the next task starts a new path

    def _make_backbone(self) -> PathNet:  # type: ignore[override]
        return PathNet(self.settings.paths, self.image_shape[-1])

    def _learn(self, task: Task, context: TrainingContext) -> None:
        if self.settings.candidates > 1 and not len(task.validation):
            raise UserError(f"Task '{task.name}' has no validation images to select a candidate: set candidates=1.")
        before = self.backbone, self.head
        candidates = (self._train(number, before, task, context) for number in range(self.settings.candidates))
        best = max(candidates, key=lambda candidate: candidate.accuracy)
        self.backbone, self.head = best.backbone, best.head
        self._plan_next_path(task)
        self.keep(task, self._random_exemplars(task))

    def _train(
        self, number: int, before: tuple[PathNet, LinearHead], task: Task, context: TrainingContext
    ) -> _Candidate:
        """Train one candidate, starting from the networks `before` this task."""
        self.backbone, self.head = copy.deepcopy(before)
        if self.switch_due:
            self._begin_path(number)
        self.backbone.freeze()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        # `before` has no module of the new path, so the teacher consists of the previous paths alone.
        teacher = teacher_of(nn.Sequential(*before)) if self.n_old else None
        phase = "learning" if self.settings.candidates == 1 else f"candidate {number + 1}"
        pixels, labels = self._with_exemplars(*self.new_data(task), self.settings.repeat_exemplars)
        self.train_on(pixels, labels, self._loss(teacher), trained, context, phase=phase)
        return _Candidate(self._accuracy(task), self.backbone, self.head)

    def _begin_path(self, candidate: int) -> None:
        device, randomness = self.device, self.random(f"path of candidate {candidate + 1}")
        used = self.backbone.fixed() | self.backbone.path()
        self.backbone.begin(draw_path(used, randomness, self.settings.prefer_free))
        place(self, device)
        if not trainable(self.backbone.path(), self.backbone.fixed()).any():
            warnings.warn(
                f"All modules on the random path of task '{self.tasks[-1].name}' are frozen already: the task trains "
                "only skips and classifier. Increase paths.modules or set prefer_free to avoid this.",
                stacklevel=6,
            )

    def _loss(self, teacher: nn.Module | None) -> LossOf:
        settings, n_old, n_seen = self.settings, self.n_old, self.n_seen
        weight = phi(len(self.tasks) - 1, settings.switching.interval, settings.gamma)

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            """`CE + phi(k) L_dist`: cross-entropy over the classes seen, `repo_distillation` over all outputs."""
            outputs = self.logits(images)
            loss = F.cross_entropy(outputs[:, :n_seen], labels)
            if teacher is None:
                return loss
            with torch.no_grad():
                old = teacher(images)[:, :n_old]
            if settings.distill == "repo":
                return loss + weight * repo_distillation(outputs, old, labels, settings.plan.batch)
            return loss + weight * soft_kl(outputs[:, :n_old], old, TEMPERATURE)

        return loss_of

    def _with_exemplars(self, pixels: Tensor, labels: Tensor, times: int = 1) -> tuple[Tensor, Tensor]:
        if not len(self.memory):
            return pixels, labels
        stored_pixels, stored_labels = self.exemplars()
        return torch.cat([pixels, *[stored_pixels] * times]), torch.cat([labels, *[stored_labels] * times])

    @torch.no_grad()
    def _accuracy(self, task: Task) -> float:
        """Mean over the classes so far: new ones on validation images, old ones on exemplars."""
        if self.settings.candidates == 1:
            return 0.0  # no selection
        pixels, labels = self._with_exemplars(task.validation.pixels, task.validation.labels + self.n_old)
        correct = (self.scores(pixels).argmax(1) == labels).double()
        return float(torch.stack([correct[labels == label].mean() for label in torch.unique(labels)]).mean())

    def _plan_next_path(self, task: Task) -> None:
        self.age.fill_(1 if self.switch_due else int(self.age) + 1)
        self.switch_due.fill_(
            self.settings.switching.should_switch(
                len(self.tasks) - 1, int(self.age), lambda samples: self._fisher(task, samples)
            )
        )

    def _fisher(self, task: Task, samples: int) -> Tensor:
        """Diagonal empirical Fisher information of the weights trained on this path: `mean (d log p(y|x) / d w)^2`."""
        modules = self.backbone.modules_in(trainable(self.backbone.path(), self.backbone.fixed()))
        weights = [weight for module in modules for weight in module.parameters()]
        pixels, labels = self._with_exemplars(*self.new_data(task))
        chosen = torch.randperm(len(labels), generator=self.random("fisher"))[:samples]
        total = [torch.zeros_like(weight) for weight in weights]
        for row in chosen.tolist() if weights else []:
            outputs = self.logits(to_unit(pixels[row : row + 1]))[:, : self.n_seen]
            log_likelihood = -F.cross_entropy(outputs, labels[row : row + 1])
            for squares, gradient in zip(total, torch.autograd.grad(log_likelihood, weights), strict=True):
                squares += gradient**2
        return torch.cat([squares.flatten() for squares in total]) / len(chosen) if weights else torch.empty(0)

    def _random_exemplars(self, task: Task) -> list[Tensor]:
        randomness = self.random("exemplars")
        rows = [(task.train.labels == label).nonzero().flatten() for label in range(task.n_classes)]
        orders = [torch.randperm(len(of_class), generator=randomness)[: self.quota] for of_class in rows]
        return [of_class[order.to(of_class.device)] for of_class, order in zip(rows, orders, strict=True)]


def trainable(path: Tensor, fixed: Tensor) -> Tensor:
    """The modules that are trained: those on the current path that are not frozen."""
    return path & ~fixed


def phi(task: int, interval: int, gamma: float) -> float:
    """The weight of the distillation: 1 up to task J, counted from 0, then growing by gamma per task."""
    return 1.0 if task <= interval else gamma * (task - interval)


def repo_distillation(outputs: Tensor, teacher: Tensor, labels: Tensor, nominal_batch: int) -> Tensor:
    """Distillation as in the public code, including its peculiarities.

    Targets are the teacher's logits for the old classes and 0 or 1 for the others, future classes included, all treated
    as logits; negative terms are clamped to zero, so it is not a divergence; the sum is divided by the nominal batch
    size.
    """
    n_old = teacher.shape[1]
    new = F.one_hot(labels, outputs.shape[1])[:, n_old:].to(outputs.dtype)
    targets = (torch.cat([teacher, new], 1) / TEMPERATURE).log_softmax(1)
    terms = targets.exp() * (targets - (outputs / TEMPERATURE).log_softmax(1))
    return terms.clamp(min=0).sum() / nominal_batch
