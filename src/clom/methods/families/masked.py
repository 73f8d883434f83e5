"""Methods with one mask per task: protection x learner x calibration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from clom.data.images import Images
from clom.data.memory import Memory, per_class
from clom.data.stratified import balanced_rows
from clom.data.stream import Task
from clom.learning.calibration import Affine, fit_to_memory
from clom.learning.context import TrainingContext
from clom.learning.learners.base import Learner
from clom.learning.loop import generator
from clom.learning.protection.base import Protection
from clom.methods.families.base import LearnedTask
from clom.methods.families.masked_network import MaskedNetwork
from clom.methods.families.masked_settings import MaskedSettings
from clom.methods.families.task_prediction import TaskPrediction
from clom.nets import NetSettings
from clom.ood.predictors.base import Decision, StoredSamples
from clom.ood.predictors.sample_outputs import SampleOutputs
from clom.ood.predictors.statistics import TaskStatistics, measure
from clom.settings import Settings

_STATISTICS = 2000
"""Training images, the same number of each class, that the statistics of a task are taken from."""


class MaskedMethod(MaskedNetwork):
    """Learns a task in its part of the network, and makes the scores of tasks comparable."""

    divisible = True
    fetches_batches = True
    settings_type: ClassVar[type[Settings]] = MaskedSettings

    def __init__(
        self,
        net: NetSettings,
        settings: MaskedSettings,
        image_shape: Sequence[int],
        seed: int,
        protection: Protection,
        learner: Learner,
    ) -> None:
        super().__init__(net, settings, image_shape, seed, protection, learner)
        self.memory = Memory()
        self.typical = nn.ParameterList()  # per task: the divisor of the `scale` calibration
        self.fitted = nn.ParameterList()  # the `memory` calibration (scales, shifts, cross_task), refitted every task
        self.prediction = TaskPrediction(settings.predictor, settings.keeps_samples)
        self._seen = SampleOutputs()  # a cache, never saved

    def networks_changed(self, first: int = 0) -> None:
        super().networks_changed(first)
        self._seen.drop(first)

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    def _open_task(self, task: LearnedTask) -> None:
        self.networks_changed(first=len(self.tasks) - 1)
        self.protection.grow(task.units, self.seed)
        self.protection.add_task()
        self.heads.append(self.learner.make_head(self.protection, len(self.tasks) - 1, task.n_classes))
        self.typical.append(_constant(torch.ones(1)))
        self.set_fitted(Affine.identity(len(self.tasks)))
        self.prediction.open_task()
        self.eval()

    def _learn(self, task: Task, context: TrainingContext) -> None:
        number = len(self.tasks) - 1
        self.requires_grad_(False)  # of the old tasks' parameters only the shared weights are trained
        for parameter in (*self.protection.weights(number), *self.protection.mask_parameters(number)):
            parameter.requires_grad_(True)
        with_outliers = replace(task, outliers=self._stored_images())
        self.heads[number] = self.learner.learn(self.protection, number, with_outliers, self.seed, context)
        self.protection.finish(number, self.heads[number])
        self.eval().requires_grad_(False)
        closed = self.protection.closed_groups(number)
        if closed and not self.protection.net.has_frozen_backbone:  # frozen features remain without an adapter
            warnings.warn(
                f"Task '{task.name}' closed every unit of {', '.join(closed)}: it may have learned nothing. A lower "
                "sparsity (attention.sparsity_first, attention.sparsity_rest) or a wider network helps.",
                stacklevel=4,  # the caller of `learn`
            )
        self.typical[number].copy_(self._typical_score(task, number))
        if self.settings.statistics and not self.protection.net.has_frozen_backbone:
            self.prediction.record(number, self._statistics(task, number), self.device)
        if self.settings.calibration == "memory":
            samples = per_class(task.validation, self.settings.memory_per_class, self._random("memory"))
            self.memory.add(number, self.stored_form(samples.pixels), samples.labels)
        self._fit_to_memory(context.counts_only)

    def _forget(self, number: int, task: LearnedTask) -> str:
        self.networks_changed()
        untouched = type(self)(self.net_settings, self.settings, self.image_shape, self.seed)  # type: ignore[call-arg]
        for learned in self.tasks:
            untouched.protection.grow(learned.units, self.seed)
        self.protection.forget(number, untouched.protection)
        del self.heads[number]
        self.typical = nn.ParameterList(value for at, value in enumerate(self.typical) if at != number)
        self.memory.forget(number)
        self.prediction.forget(number)
        if not self.tasks:
            self.fitted = nn.ParameterList()
        else:
            self._fit_to_memory()
        return "Units that other tasks also use keep what they learned from it." if self.capacity() else ""

    def _stored_images(self) -> Images | None:
        """The stored samples of all tasks, labelled by their class; None if there are none, or only their features."""
        if not len(self.memory) or self.memory.pixels.ndim != 4:
            return None
        classes = torch.stack([self.memory.tasks, self.memory.labels], 1)
        return Images(self.memory.pixels, torch.unique(classes, dim=0, return_inverse=True)[1])

    def held_out_images(self, task: int) -> Tensor | None:
        own = self.memory.pixels[self.memory.tasks == task]
        return own if len(own) else None

    def held_out_labels(self, task: int) -> Tensor | None:
        own = self.memory.labels[self.memory.tasks == task].cpu()
        return own if len(own) else None

    def calibrations(self) -> dict[str, Affine]:
        n_tasks, cpu = len(self.tasks), torch.device("cpu")
        available = {
            "memory": Affine(*self.fitted).to(cpu) if self.settings.calibration == "memory" else None,
            "scale": Affine(1 / torch.cat(list(self.typical)).to(cpu), torch.zeros(n_tasks)) if n_tasks else None,
            "none": Affine.identity(n_tasks),
        }
        preferred = self.settings.calibration
        return {name: affine for name in (preferred, *available) if (affine := available[name]) is not None}

    @torch.no_grad()
    def _typical_score(self, task: Task, number: int) -> Tensor:
        """The mean score of the true class on the task's own data; no sample needs to be stored for it."""
        # A few photos are memorised, and each costs a pass through the backbone, so held-out photos serve better.
        few = self.protection.net.has_frozen_backbone and len(task.validation) > 0
        images = task.validation if few else task.train
        pixels, labels = images.pixels, images.labels
        if not few and len(labels) > _TYPICAL:
            rows = balanced_rows(labels, _TYPICAL, self._random("scale"))
            pixels, labels = task.train.fetch(rows), labels[rows]
        own = self.block(pixels, number)
        return own.gather(1, labels.cpu()[:, None]).mean().clamp(min=1e-6)

    @property
    def calibration_samples(self) -> int | None:
        return self.settings.memory_per_class if self.settings.calibration == "memory" else None

    def recalibrate(self, samples_per_class: int) -> None:
        if self.calibration_samples is None:
            super().recalibrate(samples_per_class)
        self.settings = self.settings.model_copy(update={"memory_per_class": samples_per_class})
        self.memory.shrink(samples_per_class)
        self._seen.drop()
        self._fit_to_memory()

    def _fit_to_memory(self, counts_only: bool = False) -> None:
        """Fit what makes tasks comparable to the stored samples: the calibration, and the task predictor.

        With `counts_only`, the samples are computed and counted, but nothing is fitted to them.
        """
        if self.settings.calibration != "memory":
            self.set_fitted(Affine.identity(len(self.tasks)))
            self.prediction.fit(None, self.device)
            return
        samples = self.samples("features" in self.prediction.needs)
        if counts_only:
            return
        offsets = torch.tensor([0] + [task.n_classes for task in self.tasks]).cumsum(0)
        blocks, labels = [task.block for task in samples.outputs], samples.labels + offsets[samples.tasks]
        self.set_fitted(fit_to_memory(blocks, labels, self.settings.memory_fit, self._random("calibration")))
        self.prediction.fit(samples, self.device)

    def use_predictor(self, name: str | None) -> None:
        """Decide by another task predictor, or by the calibration alone; nothing is trained."""
        settings = self.settings.model_copy(update={"predictor": name})
        self.prediction.use(name, settings.keeps_samples)
        self.settings = settings
        self._fit_to_memory()

    def samples(self, with_features: bool) -> StoredSamples:
        """The stored samples as every task's model sees them."""
        if self.protection.exact:
            outputs = self._seen.of_all_models(len(self.tasks), self.memory, self.outputs_of, with_features)
        else:  # models of earlier tasks have changed
            outputs = self.all_outputs(self.memory.pixels, with_features)
        return StoredSamples(outputs, self.memory.tasks.cpu(), self.memory.labels.cpu())

    def decisions(self) -> Mapping[str, Affine | Decision]:
        chosen = self.settings.predictor
        return self.calibrations() if chosen is None else {chosen: self.prediction, **self.calibrations()}

    @property
    def decides_by_features(self) -> bool:
        return "features" in self.prediction.needs

    def complete_statistics(self, tasks: Sequence[Task]) -> None:
        """Take the statistics that a model of an earlier version lacks, from the data of its tasks."""
        for number, task in enumerate(tasks):
            if not self.prediction.has_statistics(number):
                self.prediction.record(number, self._statistics(task, number), self.device)

    def _statistics(self, task: Task, number: int) -> TaskStatistics:
        randomness = generator(self.seed, "statistics", number)
        rows = balanced_rows(task.train.labels, _STATISTICS, randomness)
        own, held_out = (
            self.outputs(pixels, number, True) for pixels in (task.train.fetch(rows), task.validation.pixels)
        )
        return measure(own, task.train.labels[rows].cpu(), held_out, task.validation.labels.cpu())

    def set_fitted(self, fitted: Affine) -> None:
        values = [fitted.scales, fitted.shifts]
        if self.settings.memory_fit.cross_task is not None:
            n_classes = sum(task.n_classes for task in self.tasks)
            cross_task = fitted.cross_task
            values.append(torch.zeros(len(self.tasks), n_classes) if cross_task is None else cross_task)
        self.fitted = nn.ParameterList(_constant(value.to(self.device)) for value in values)

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)


def _constant(values: Tensor) -> nn.Parameter:
    """A parameter that is saved with the model but gets no gradient."""
    return nn.Parameter(values, requires_grad=False)


_TYPICAL = 2000
"""Images that the divisor of the `scale` calibration is computed from."""
