"""Methods with one mask per task: protection x learner x calibration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.memory import Memory, per_class
from clom.data.stratified import balanced_rows
from clom.data.stream import Task
from clom.data.views import rotations, with_flipped
from clom.errors import UserError
from clom.learning.calibration import Affine, fit_to_memory
from clom.learning.context import TrainingContext
from clom.learning.heads import DiscriminantHead
from clom.learning.learners.base import Learner
from clom.learning.loop import generator
from clom.learning.protection.base import Protection
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.methods.families.graphs import MaskedScores, TaskScores
from clom.methods.families.masked_settings import MaskedSettings
from clom.methods.families.task_network import TaskNetwork
from clom.methods.families.task_prediction import TaskPrediction
from clom.nets import NetSettings
from clom.nets.gates import Gates
from clom.nets.networks.adapters import AdapterNet
from clom.ood.predictors.base import Decision, StoredSamples, TaskOutputs
from clom.ood.predictors.statistics import TaskStatistics, measure
from clom.settings import Settings
from clom.threads import Workers

_STATISTICS = 2000
"""Training images, the same number of each class, that the statistics of a task are taken from."""


class MaskedMethod(Method):
    """One protected network, one head per task, scores averaged over rotations."""

    divisible = True
    fetches_batches = True
    settings_type: ClassVar[type[Settings]] = MaskedSettings
    settings: MaskedSettings

    def __init__(
        self,
        net: NetSettings,
        settings: MaskedSettings,
        image_shape: Sequence[int],
        seed: int,
        protection: Protection,
        learner: Learner,
    ) -> None:
        super().__init__(net, settings, image_shape, seed)
        if settings.flip_tta and protection.net.has_frozen_backbone:
            raise UserError("flip_tta does not work with a pretrained network: set flip_tta to false.")
        self.protection = protection
        self.exact_memory = protection.exact
        self.learner = learner
        self._batch_size = 32 if protection.net.has_frozen_backbone else 256  # photos are large
        self.heads = nn.ModuleList()
        self.memory = Memory()
        self.typical = nn.ParameterList()  # per task: the divisor of the `scale` calibration
        self.fitted = nn.ParameterList()  # the `memory` calibration (scales, shifts, cross_task), refitted every task
        self.prediction = TaskPrediction(settings.predictor, settings.keeps_samples)
        self._networks: dict[int, TaskNetwork] = {}  # a cache, filled on first use; never saved
        self._workers = Workers()
        self.register_load_state_dict_post_hook(_clear_networks)  # type: ignore[no-untyped-call]

    def _apply(self, *args: Any, **options: Any) -> Self:
        self._networks = {}  # their tensors are about to move
        moved: Self = super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        return moved

    def capacity(self) -> Mapping[str, Sequence[float]]:
        return self.protection.capacity()

    def n_parameters(self) -> int:
        """Shared weights plus the gates, normalisation and heads of all tasks; the projection g is discarded."""
        return self.protection.n_parameters() + sum(p.numel() for p in self.heads.parameters())

    @property
    def least_classes(self) -> int:
        return 1 if self.learner.rotations > 1 else 2  # a single class can only be contrasted with its rotations

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    def _open_task(self, task: LearnedTask) -> None:
        self._networks = {}
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
        self.heads[number] = self.learner.learn(self.protection, number, task, self.seed, context)
        self.protection.finish(number, self.heads[number])
        self.eval().requires_grad_(False)
        closed = self.protection.closed_groups(number)
        if closed and not self.protection.net.has_frozen_backbone:  # frozen features remain without an adapter
            warnings.warn(
                f"Task '{task.name}' closed every unit of {', '.join(closed)}: it may have learned nothing. A lower "
                "sparsity (attention.sparsity_first, attention.sparsity_rest) or a wider network helps.",
                stacklevel=3,
            )
        self.typical[number].copy_(self._typical_score(task, number))
        if self.settings.statistics and not self.protection.net.has_frozen_backbone:
            self.prediction.record(number, self._statistics(task, number))
        if self.settings.calibration == "memory":
            samples = per_class(task.validation, self.settings.memory_per_class, self._random("memory"))
            self.memory.add(number, self.stored_form(samples.pixels), samples.labels)
        self._fit_to_memory()

    def _forget(self, number: int, task: LearnedTask) -> str:
        self._networks = {}
        untouched = type(self)(self.net_settings, self.settings, self.image_shape, self.seed)  # type: ignore[call-arg]
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

    def sub_network(self, task: int) -> dict[str, Tensor]:
        head = {f"head.{name}": value for name, value in self.heads[task].state_dict().items()}
        inference = {"rotations": torch.tensor(self.learner.rotations)}
        if self.settings.flip_tta:
            inference["mirror"] = torch.tensor(True)  # its former name: fingerprints of existing models depend on it
        return self.protection.sub_network(task) | head | inference

    # --- scores ------------------------------------------------------------------------------------------------------

    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self._blocks(pixels, [task])[0]

    def blocks(self, pixels: Tensor) -> Blocks:
        return self._blocks(pixels, range(len(self.tasks)))

    @torch.no_grad()
    def _blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        if not len(pixels):
            return [torch.empty(0, self.tasks[task].n_classes) for task in tasks]
        batches = [self._batch_blocks(batch, tasks) for batch in torch.split(pixels, self._batch_size)]
        return [torch.cat(of_task).cpu() for of_task in zip(*batches, strict=True)]

    @property
    def _images_at_once(self) -> int:
        """On a CPU so few that their activations stay in its caches; larger batches gain nothing there."""
        small = self.device.type == "cpu" and not self.protection.net.has_frozen_backbone
        return 32 if small else self._batch_size

    def _batch_blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        """The blocks of one batch: each task's network on a few images at a time, side by side."""
        networks = [self._network(task) for task in tasks]
        parts = self._run([partial(self._views, part) for part in torch.split(pixels, self._images_at_once)])
        scores = self._run([partial(network, views) for views in parts for network in networks])
        return [torch.cat(scores[number :: len(networks)]) for number in range(len(networks))]

    def _run(self, jobs: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
        return self._workers.run(jobs) if self.device.type == "cpu" else [job() for job in jobs]

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        return self._network(task)(self._views(images))

    @torch.no_grad()
    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """With discriminant heads the in-distribution score is how well the span of a class explains the features."""
        chosen = range(len(self.tasks)) if tasks is None else tasks
        heads = {task: head for task in chosen if isinstance(head := self.heads[task], DiscriminantHead)}
        if not len(pixels) or not heads or len(heads) < len(chosen):
            return super().blocks_and_belonging(pixels, tasks)
        blocks, belonging = [], []
        for batch in torch.split(pixels, self._batch_size):
            views = self._views(batch)
            blocks.append([self._network(task)(views) for task in chosen])
            # From the masked network: model files record these scores, and the compact one rounds differently.
            similar = [
                head.similarity(self.protection.features(views, task), self.learner.rotations)
                for task, head in heads.items()
            ]
            belonging.append(torch.stack(similar, 1))
        return [torch.cat(of_task).cpu() for of_task in zip(*blocks, strict=True)], torch.cat(belonging).cpu()

    def _views(self, pixels: Tensor) -> Tensor:
        """All rotations as one batch, passed through the frozen backbone if there is one."""
        if pixels.ndim == 3:  # already in `stored_form`
            return pixels.to(self.device).transpose(0, 1).flatten(0, 1)
        images = to_unit(pixels.to(self.device))
        if self.settings.flip_tta:
            images = with_flipped(images)
        turned = rotations(images, self.learner.rotations).contiguous(memory_format=torch.channels_last)
        return self.protection.net.frozen_features(turned)

    def _network(self, task: int) -> TaskNetwork:
        if task not in self._networks:
            self._networks[task] = TaskNetwork(
                *self.protection.inference_features(task),
                self.heads[task],
                self.learner.rotations,
                self.settings.flip_tta,
            )
        return self._networks[task]

    @torch.no_grad()
    def stored_form(self, pixels: Tensor) -> Tensor:
        """Images as the memory stores them: with a frozen backbone its features, `[images, rotations, d]`, from which
        the pictures cannot be seen; otherwise the images themselves."""
        if not self.protection.net.has_frozen_backbone or pixels.ndim == 3:
            return pixels
        count = self.learner.rotations
        batches = [self._views(batch).view(count, len(batch), -1) for batch in torch.split(pixels, self._batch_size)]
        return torch.cat(batches, 1).transpose(0, 1).contiguous()

    def held_out_images(self, task: int) -> Tensor | None:
        own = self.memory.pixels[self.memory.tasks == task]
        return own if len(own) else None

    def gates(self, task: int) -> Gates:
        return self.protection.gates(task)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        net, rotations, flip_tta = self.protection.net, self.learner.rotations, self.settings.flip_tta
        graphs = []
        for task in tasks:
            compact = self.protection.compact(task)
            if compact is None:
                raise UserError(f"{self.name} cannot be exported with soft gates (attention.binary: false).")
            graphs.append(TaskScores(*compact, self.heads[task], net.n_features, rotations, flip_tta))
        backbone = net.backbone if isinstance(net, AdapterNet) else None
        return MaskedScores(graphs, backbone, rotations, flip_tta)

    @torch.no_grad()
    def features(self, pixels: Tensor, task: int) -> Tensor:
        """`h(x, k)` of the unrotated images."""
        batches = torch.split(pixels, 256)
        features = [self.protection.features(to_unit(batch.to(self.device)), task) for batch in batches]
        return torch.cat(features).cpu()

    @torch.no_grad()
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, features]` and bias of the head's block for rotation 0, its first rows."""
        head, n_classes = self.heads[task], self.tasks[task].n_classes
        n_features, device = self.protection.net.n_features, self.device
        bias = head(torch.zeros(1, n_features, device=device))
        weight = head(torch.eye(n_features, device=device)) - bias  # works for masked heads as well
        return weight[:, :n_classes].T.cpu(), bias[0, :n_classes].cpu()

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
        if not few and len(images) > _TYPICAL:
            images = images[balanced_rows(images.labels, _TYPICAL, self._random("scale"))]
        own = self.block(images.pixels, number)
        return own.gather(1, images.labels.cpu()[:, None]).mean().clamp(min=1e-6)

    @property
    def calibration_samples(self) -> int | None:
        return self.settings.memory_per_class if self.settings.calibration == "memory" else None

    def recalibrate(self, samples_per_class: int) -> None:
        if self.calibration_samples is None:
            super().recalibrate(samples_per_class)
        self.settings = self.settings.model_copy(update={"memory_per_class": samples_per_class})
        self.memory.shrink(samples_per_class)
        self._fit_to_memory()

    def _fit_to_memory(self) -> None:
        """Fit what makes tasks comparable to the stored samples: the calibration, and the task predictor."""
        if self.settings.calibration != "memory":
            self.set_fitted(Affine.identity(len(self.tasks)))
            self.prediction.fit(None)
            return
        samples = self.samples("features" in self.prediction.needs)
        offsets = torch.tensor([0] + [task.n_classes for task in self.tasks]).cumsum(0)
        blocks, labels = [task.block for task in samples.outputs], samples.labels + offsets[samples.tasks]
        self.set_fitted(fit_to_memory(blocks, labels, self.settings.memory_fit, self._random("calibration")))
        self.prediction.fit(samples)

    def use_predictor(self, name: str | None) -> None:
        """Decide by another task predictor, or by the calibration alone; nothing is trained."""
        settings = self.settings.model_copy(update={"predictor": name})
        self.prediction.use(name, settings.keeps_samples)
        self.settings = settings
        self._fit_to_memory()

    def samples(self, with_features: bool) -> StoredSamples:
        """The stored samples as every task's model sees them."""
        outputs = [self.outputs(self.memory.pixels, task, with_features) for task in range(len(self.tasks))]
        return StoredSamples(outputs, self.memory.tasks.cpu(), self.memory.labels.cpu())

    def decisions(self) -> Mapping[str, Affine | Decision]:
        chosen = self.settings.predictor
        return self.calibrations() if chosen is None else {chosen: self.prediction, **self.calibrations()}

    @property
    def decides_by_features(self) -> bool:
        return "features" in self.prediction.needs

    @torch.no_grad()
    def outputs(self, pixels: Tensor, task: int, with_features: bool) -> TaskOutputs:
        """The features, `[images, rotations, d]`, come from the same pass as the block."""
        if not with_features or not len(pixels):
            return TaskOutputs(self.block(pixels, task))
        batches = [self._network(task).outputs(self._views(batch)) for batch in torch.split(pixels, self._batch_size)]
        block, features = (torch.cat(parts).cpu() for parts in zip(*batches, strict=True))
        return TaskOutputs(block, features)

    def complete_statistics(self, tasks: Sequence[Task]) -> None:
        """Take the statistics that a model of an earlier version lacks, from the data of its tasks."""
        for number, task in enumerate(tasks):
            if not self.prediction.has_statistics(number):
                self.prediction.record(number, self._statistics(task, number))

    def _statistics(self, task: Task, number: int) -> TaskStatistics:
        randomness = generator(self.seed, "statistics", number)
        train = per_class(task.train, max(1, _STATISTICS // task.n_classes), randomness)
        own, held_out = (self.outputs(images.pixels, number, True) for images in (train, task.validation))
        return measure(own, train.labels.cpu(), held_out, task.validation.labels.cpu())

    def set_fitted(self, fitted: Affine) -> None:
        values = [fitted.scales, fitted.shifts]
        if self.settings.memory_fit.cross_task is not None:
            n_classes = sum(task.n_classes for task in self.tasks)
            cross_task = fitted.cross_task
            values.append(torch.zeros(len(self.tasks), n_classes) if cross_task is None else cross_task)
        self.fitted = nn.ParameterList(_constant(value.to(self.device)) for value in values)

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)


def _clear_networks(method: nn.Module, _: object) -> None:
    """Cached networks hold the weights from before loading."""
    assert isinstance(method, MaskedMethod)
    method._networks = {}


def _constant(values: Tensor) -> nn.Parameter:
    """A parameter that is saved with the model but gets no gradient."""
    return nn.Parameter(values, requires_grad=False)


_TYPICAL = 2000
"""Images that the divisor of the `scale` calibration is computed from."""
