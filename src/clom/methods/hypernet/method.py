"""HyperNet: a network generates every task's classifier from a small learned vector (von Oswald et al. 2020)."""

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
from clom.settings import NonNegative, Positive, PositiveNumber, Settings

M = TypeVar("M", bound=nn.Module)


class HypernetworkSettings(Settings):
    """h; the defaults are the official code's for MNIST."""

    chunk: Positive = 42000
    """How many weights one call generates."""
    task_vector: Positive = 96
    chunk_vector: Positive = 96
    hidden: tuple[Positive, ...] = (10, 10)
    """Sizes of the hidden layers; none makes h linear."""


class HyperLearningSettings(Settings):
    """How one task is learned."""

    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)
    plan: Plan = Plan(epochs=24, batch=128)
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    vector_lr: PositiveNumber | None = None
    """The task vector's learning rate; by default that of everything else."""


class HyperNetSettings(Settings):
    target: MlpTargetSettings | ResNet32Settings = MlpTargetSettings()
    """The classifier whose weights are generated."""
    hypernetwork: HypernetworkSettings = HypernetworkSettings()
    beta: NonNegative = 0.01
    """How strongly the weights of old tasks are held."""
    learning: HyperLearningSettings = HyperLearningSettings()


class Hypernetwork(nn.Module):
    """h with its chunk vectors: everything that all tasks share (theta)."""

    def __init__(self, settings: HypernetworkSettings) -> None:
        super().__init__()
        self.chunk = settings.chunk
        self.chunk_vectors = nn.Parameter(torch.empty(0, settings.chunk_vector))
        sizes = (settings.task_vector + settings.chunk_vector, *settings.hidden, settings.chunk)
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in pairwise(sizes))
        for parameter in self.layers.parameters():
            nn.init.xavier_uniform_(parameter) if parameter.ndim > 1 else nn.init.zeros_(parameter)

    def make_room(self, n_weights: int) -> None:
        """Chunk vectors for so many weights. New ones come last, so nothing changes for who needs fewer."""
        n_chunks, size = self.chunk_vectors.shape
        missing = max(0, math.ceil(n_weights / self.chunk) - n_chunks)  # K = ceil(N / chunk)
        more = torch.randn(missing, size).to(self.chunk_vectors.device)
        self.chunk_vectors = nn.Parameter(torch.cat([self.chunk_vectors.detach(), more]))

    def forward(self, task_vector: Tensor, n_weights: int) -> Tensor:
        """W = concat_k h(e, c_k)[:N]: the chunks are one batch; what the last has too many is dropped."""
        chunks = self.chunk_vectors[: math.ceil(n_weights / self.chunk)]
        values = torch.cat([task_vector.expand(len(chunks), -1), chunks], dim=1)
        for number, layer in enumerate(self.layers):
            values = layer(F.relu(values) if number else values)
        return values.flatten()[:n_weights]


class HyperNet(Method):
    """Continual learning with hypernetworks. Forgetting is fought in weight space, so old scores drift a little.

    No number of tasks is known in advance: where the official code gives the target one output layer for all tasks and
    holds only the old tasks' own rows of it, here a task's target has its own rows and no others. They are generated
    last, so tasks of different sizes share the layers before; if a task is larger than all before, chunk vectors are
    added.

    The experiment's network is not used: the paper kept HyperNet's own targets, which are settings of this method.
    `n_parameters` counts what is kept: h, its chunk vectors and the task vectors. The paper's table prints the size of
    the target instead. Statistics of normalisation layers are kept for each task besides.
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
        self._targets: list[nn.Module] = []  # shapes without weights: nothing to save

    def _open_task(self, task: LearnedTask) -> None:
        target = make_target(self.settings.target, self.image_shape[-1], task.n_classes)
        self._targets.append(target)
        self.statistics.append(Statistics(target))
        self.task_vectors.append(nn.Parameter(torch.randn(self.settings.hypernetwork.task_vector)))
        self.hypernetwork.make_room(n_weights(target))
        self.requires_grad_(False)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        how, number = self.settings.learning, len(self.tasks) - 1
        old = self.generated()[:number]  # W*_j = h(e_j; theta*), theta* being theta before this task
        vector = self.task_vectors[number].requires_grad_(True)  # those of old tasks are frozen
        theta = list(self.hypernetwork.requires_grad_(True).parameters())
        # The official code has two optimisers. Two groups of one are the same: tensors are stepped independently, and
        # the regulariser does not know the new vector.
        vector_how = how.optimiser.model_copy(update={"lr": how.vector_lr or how.optimiser.lr})
        optimiser = make_optimiser([(how.optimiser, theta), (vector_how, [vector])])
        randomness = generator(self.seed, "views", number)

        def loss_of(batch: Batch) -> Tensor:
            images = augment(to_unit(task.train.pixels[batch.index]), how.augmentation, randomness)
            outputs = self._run(self._generate(number), images, number, training=True)
            return F.cross_entropy(outputs, task.train.labels[batch.index])

        def hold_old_tasks() -> None:
            if old and self.settings.beta:
                vectors = list(self.task_vectors)[:number]
                add_regulariser(self.hypernetwork, optimiser, vectors, old, self.settings.beta)

        batches = generator(self.seed, "batches", number)
        fit(
            loss_of,
            optimiser,
            how.plan,
            len(task.train),
            batches,
            state=[randomness],
            task=number,
            before_step=hold_old_tasks,
            context=context,
        )
        self.requires_grad_(False)

    @torch.no_grad()
    def generated(self) -> list[Tensor]:
        """The weights of each task's target as one vector, as they are now."""
        return [self._generate(task) for task in range(len(self.tasks))]

    def _generate(self, task: int) -> Tensor:
        weights: Tensor = self.hypernetwork(self.task_vectors[task], n_weights(self._targets[task]))
        return weights

    def _run(self, weights: Tensor, images: Tensor, task: int, training: bool) -> Tensor:
        """The task's target with these weights and the task's own statistics."""
        target, statistics = self._targets[task].train(training), self.statistics[task]
        assert isinstance(statistics, Statistics)
        outputs: Tensor = functional_call(target, {**as_weights(target, weights), **statistics.named()}, (images,))
        return outputs

    @torch.no_grad()
    def block(self, pixels: Tensor, task: int) -> Tensor:
        weights = self._generate(task)
        parts = (to_unit(part.to(weights.device)) for part in torch.split(pixels, 256))
        return torch.cat([self._run(weights, part, task, training=False) for part in parts]).cpu()

    def blocks(self, pixels: Tensor) -> Blocks:
        return [self.block(pixels, task) for task in range(len(self.tasks))]


def add_regulariser(
    hypernetwork: nn.Module, optimiser: Optimizer, vectors: Sequence[Tensor], old: Sequence[Tensor], beta: float
) -> None:
    """Add the gradient of beta R at theta + dtheta to that of the task loss, which theta must have by now.

    dtheta counts as a constant, so the gradient with respect to theta is that with respect to theta + dtheta. Without
    dtheta it would be zero in the first step of a task.
    """
    ahead = lookahead(hypernetwork, optimiser)
    outputs = [ahead(vector, len(weights)) for vector, weights in zip(vectors, old, strict=True)]
    gradients = torch.autograd.grad(beta * drift(old, outputs), list(ahead.parameters()))
    for parameter, gradient in zip(hypernetwork.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(gradient)


def drift(old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensor:
    """R = 1/(t-1) sum_j |W*_j - W_j|^2: a sum over the weights, a mean over old tasks."""
    return torch.stack([(after - before).pow(2).sum() for before, after in zip(old, new, strict=True)]).mean()


def lookahead(module: M, optimiser: Optimizer) -> M:
    """`module` at theta + dtheta: as the next step would leave it with the present gradients.

    Copies of both take the step, with the optimiser's real moments and rates; the originals stay as they are.
    """
    ahead, stepper = copy.deepcopy((module, optimiser))
    for parameter, twin in zip(module.parameters(), ahead.parameters(), strict=True):
        twin.grad = None if parameter.grad is None else parameter.grad.clone()
    stepper.step()
    return ahead
