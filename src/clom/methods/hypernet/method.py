"""HyperNet: a hypernetwork generates each task's classifier from a small learned vector (von Oswald et al. 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import Augmentation, augment
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.schedule import Validator
from clom.methods.families.base import Blocks, LearnedTask, Method, seeded
from clom.methods.hypernet.targets import (
    MlpTargetSettings,
    ResNet32Settings,
    Statistics,
    as_weights,
    make_target,
    n_weights,
)
from clom.nets import NetSettings
from clom.nets.passes import CountedNetwork
from clom.settings import NonNegative, Positive, PositiveNumber, Settings

M = TypeVar("M", bound=nn.Module)


class HypernetworkSettings(Settings):
    """The hypernetwork h; the defaults are those of the official code for MNIST."""

    chunk: Positive = 42000
    """Number of weights generated per call."""
    task_vector: Positive = 96
    chunk_vector: Positive = 96
    hidden: tuple[Positive, ...] = (10, 10)
    """Sizes of the hidden layers; empty for a linear h."""


class HyperLearningSettings(Settings):
    """Training of one task."""

    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)
    plan: Plan = Plan(epochs=24, batch=128)
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    vector_lr: PositiveNumber | None = None
    """Learning rate of the task vector; by default that of `optimiser`."""


class HyperNetSettings(Settings):
    target: MlpTargetSettings | ResNet32Settings = MlpTargetSettings()
    """The classifier whose weights are generated."""
    hypernetwork: HypernetworkSettings = HypernetworkSettings()
    beta: NonNegative = 0.01
    """Weight of the regulariser that preserves the generated weights of old tasks."""
    learning: HyperLearningSettings = HyperLearningSettings()


class ChunkLayers(CountedNetwork, nn.ModuleList):
    """From the vectors of chunks, one per row, to their weights."""

    def forward(self, values: Tensor) -> Tensor:
        for number, layer in enumerate(self):
            values = layer(F.relu(values) if number else values)
        return values


class Hypernetwork(nn.Module):
    """h with its chunk vectors: theta, the parameters that all tasks share."""

    def __init__(self, settings: HypernetworkSettings) -> None:
        super().__init__()
        self.chunk = settings.chunk
        self.chunk_vectors = nn.Parameter(torch.empty(0, settings.chunk_vector))
        sizes = (settings.task_vector + settings.chunk_vector, *settings.hidden, settings.chunk)
        self.layers = ChunkLayers(nn.Linear(n_in, n_out) for n_in, n_out in pairwise(sizes))
        for parameter in self.layers.parameters():
            nn.init.xavier_uniform_(parameter) if parameter.ndim > 1 else nn.init.zeros_(parameter)

    def make_room(self, n_weights: int) -> None:
        """Append chunk vectors until there are enough for `n_weights`; smaller targets do not change."""
        n_chunks, size = self.chunk_vectors.shape
        missing = max(0, math.ceil(n_weights / self.chunk) - n_chunks)  # K = ceil(N / chunk)
        more = torch.randn(missing, size).to(self.chunk_vectors.device)
        self.chunk_vectors = nn.Parameter(torch.cat([self.chunk_vectors.detach(), more]))

    def forward(self, task_vector: Tensor, n_weights: int) -> Tensor:
        """W = concat_k h(e, c_k)[:N]: the chunks form one batch; the excess of the last one is dropped."""
        chunks = self.chunk_vectors[: math.ceil(n_weights / self.chunk)]
        values: Tensor = self.layers(torch.cat([task_vector.expand(len(chunks), -1), chunks], dim=1))
        return values.flatten()[:n_weights]


class HyperNet(Method):
    """Continual learning with hypernetworks. Regularisation is in weight space, so old scores drift a little.

    The number of tasks is not known in advance: in the official code the target has one output layer for all tasks, of
    which only the rows of old tasks are regularised; here each task's target has only its own rows. They are generated
    last, so tasks of different sizes share the layers before; for a task larger than all before, chunk vectors are
    added.

    The experiment's network is not used: the paper used HyperNet's own targets, which are settings of this method.
    `n_parameters` counts what is stored: h, its chunk vectors and the task vectors. The paper's table reports the size
    of the target instead. The statistics of normalisation layers are also stored for each task.
    """

    name = "hypernet"
    settings_type = HyperNetSettings
    least_classes = 2  # its cross-entropy is over the classes of the task alone
    settings: HyperNetSettings

    def __init__(self, net: NetSettings, settings: HyperNetSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        with seeded(seed, "network"):
            self.hypernetwork = Hypernetwork(settings.hypernetwork)
        self.task_vectors = nn.ParameterList()
        self.statistics = nn.ModuleList()
        self._targets: list[nn.Module] = []  # on the meta device, without weights: nothing to save

    def _open_task(self, task: LearnedTask) -> None:
        target = make_target(self.settings.target, self.image_shape[-1], task.n_classes)
        self._targets.append(target)
        self.statistics.append(Statistics(target))
        self.task_vectors.append(nn.Parameter(torch.randn(self.settings.hypernetwork.task_vector)))
        self.hypernetwork.make_room(n_weights(target))
        self.requires_grad_(False)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        settings, number = self.settings.learning, len(self.tasks) - 1
        old = self.generated()[:number]  # W*_j = h(e_j; theta*), theta* being theta before this task
        vector = self.task_vectors[number].requires_grad_(True)  # those of old tasks are frozen
        theta = list(self.hypernetwork.requires_grad_(True).parameters())
        # The official code has two optimisers. Two parameter groups are equivalent: tensors are updated independently,
        # and the regulariser does not depend on the new vector.
        vector_optimiser = settings.optimiser.model_copy(update={"lr": settings.vector_lr or settings.optimiser.lr})
        optimiser = make_optimiser([(settings.optimiser, theta), (vector_optimiser, [vector])])
        randomness = generator(self.seed, "views", number)

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(task.train.pixels[batch.index]), settings.augmentation, randomness)
            outputs = self._run(self._generate(number), images, number, training=True)
            return F.cross_entropy(outputs, task.train.labels[batch.index])

        def regularise() -> None:
            if old and self.settings.beta:
                vectors = list(self.task_vectors)[:number]
                add_regulariser(self.hypernetwork, optimiser, vectors, old, self.settings.beta)

        def validation_outputs(images: Tensor) -> tuple[Tensor, Tensor]:
            return self._run(self._generate(number), images, number, training=False), images.new_zeros(())

        fit(
            loss_of,
            optimiser,
            settings.plan,
            len(task.train),
            generator(self.seed, "batches", number),
            state=[randomness],
            task=number,
            before_step=regularise,
            validator=Validator(task.validation, validation_outputs, [self]),
            context=context,
        )
        self.requires_grad_(False)

    @torch.no_grad()
    def generated(self) -> list[Tensor]:
        """The current weights of each task's target as one vector."""
        return [self._generate(task) for task in range(len(self.tasks))]

    def _generate(self, task: int) -> Tensor:
        weights: Tensor = self.hypernetwork(self.task_vectors[task], n_weights(self._targets[task]))
        return weights

    def _run(self, weights: Tensor, images: Tensor, task: int, training: bool) -> Tensor:
        """The logits of the task's target with these weights and the task's statistics."""
        target, statistics = self._targets[task].train(training), self.statistics[task]
        assert isinstance(statistics, Statistics)
        outputs: Tensor = functional_call(target, {**as_weights(target, weights), **statistics.named()}, (images,))
        return outputs

    @torch.no_grad()
    def block(self, pixels: Tensor, task: int) -> Tensor:
        weights = self._generate(task)
        batches = (to_unit(batch.to(weights.device)) for batch in torch.split(pixels, 256))
        return torch.cat([self._run(weights, batch, task, training=False) for batch in batches]).cpu()

    def blocks(self, pixels: Tensor) -> Blocks:
        return [self.block(pixels, task) for task in range(len(self.tasks))]


def add_regulariser(
    hypernetwork: nn.Module, optimiser: Optimizer, vectors: Sequence[Tensor], old: Sequence[Tensor], beta: float
) -> None:
    """Add the gradient of beta R at theta + dtheta to that of the task loss, which must have been computed before.

    dtheta is treated as a constant, so the gradient with respect to theta is that with respect to theta + dtheta.
    Without dtheta it would be zero in the first step of a task.
    """
    ahead = lookahead(hypernetwork, optimiser)
    outputs = [ahead(vector, len(weights)) for vector, weights in zip(vectors, old, strict=True)]
    gradients = torch.autograd.grad(beta * drift(old, outputs), list(ahead.parameters()))
    for parameter, gradient in zip(hypernetwork.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(gradient)


def drift(old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensor:
    """R = 1/(t-1) sum_j |W*_j - W_j|^2: summed over weights, averaged over old tasks."""
    return torch.stack([(after - before).pow(2).sum() for before, after in zip(old, new, strict=True)]).mean()


def lookahead(module: M, optimiser: Optimizer) -> M:
    """`module` at theta + dtheta: after the next step with the current gradients.

    The step is made by copies of both, with the optimiser's moments and learning rates; the originals do not change.
    """
    ahead, stepper = copy.deepcopy((module, optimiser))
    for parameter, twin in zip(module.parameters(), ahead.parameters(), strict=True):
        twin.grad = None if parameter.grad is None else parameter.grad.clone()
    stepper.step()
    return ahead
