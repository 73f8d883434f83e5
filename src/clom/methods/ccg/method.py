"""CCG: conditional channel gated networks (Abati et al. 2020).

There is no official code. Equations 1-6 agree with an unofficial implementation of the task-incremental part; 7 and 8
(combination of losses and memory) are not verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from clom.data.images import Images, to_unit
from clom.data.memory import Memory
from clom.data.stream import Task
from clom.data.views import Augmentation, augment
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection.hard_attention import UpdateMask
from clom.methods.ccg.gated_network import ConditionalResNetSettings, ConvSettings, TaskClassifier, make_conditional_net
from clom.methods.ccg.wgan import Generator, WganSettings, train_generator
from clom.methods.families.base import Blocks, LearnedTask, Method, seeded
from clom.nets import NetSettings
from clom.settings import Count, Fraction, NonNegative, Positive, Settings


class CcgSettings(Settings):
    network: ConvSettings | ConditionalResNetSettings = ConvSettings()
    """The network, used instead of the experiment's."""
    sparsity: NonNegative = 0.5
    patience: Count = 10
    """Epochs without the sparsity term."""
    threshold: Fraction = 0.0
    """A channel is relevant for a task if it is open for more than this fraction of its images: 0 in the paper, 0.001
    in the unofficial implementation."""
    rehearsal: Literal["episodic", "generative"] = "episodic"
    memory: Positive = 200
    """Total number of images, divided among the tasks."""
    wgan: WganSettings = WganSettings()
    rule: Literal["soft", "hard"] = "soft"
    """`hard`, as in the paper: predict the task, then its class. `soft` (ours): the most probable pair of both."""
    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    gates_optimiser: OptimiserSettings | None = None
    """Ours: in a short training, gates close only with a larger learning rate. By default `optimiser`."""
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)


def open_share(gates: Sequence[Tensor]) -> Tensor:
    """Eq. 4 without its weight: the fraction of open channels, averaged over images and layers."""
    return torch.stack([gate.mean() for gate in gates]).mean()


class Ccg(Method):
    """Channels relevant for a task are frozen after it; a task classifier with rehearsal predicts the task."""

    name = "ccg"
    settings_type = CcgSettings
    settings: CcgSettings

    def __init__(self, net: NetSettings, settings: CcgSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        with seeded(seed, "network"):
            self.net = make_conditional_net(settings.network)
            self.task_classifier = TaskClassifier(self.net.n_features)
        self.heads = nn.ModuleList()
        self.memory = Memory()
        self.generators = nn.ModuleList()

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    def n_parameters(self) -> int:
        """Without the generators, which inference does not need."""
        return super().n_parameters() - sum(p.numel() for p in self.generators.parameters())

    def capacity(self) -> dict[str, list[float]]:
        tasks = range(1, len(self.tasks) + 1)
        layers = enumerate(self.net.layers(), start=1)
        return {f"layer {n}": [round(float(layer.frozen_channels(t).mean()), 4) for t in tasks] for n, layer in layers}

    def _open_task(self, task: LearnedTask) -> None:
        self.net.add_task()
        self.heads.append(nn.Linear(self.net.n_features, task.n_classes))
        self.task_classifier.grow()
        if self.settings.rehearsal == "generative":
            self.generators.append(Generator(self.settings.wgan, self.image_shape[0], self.image_shape[-1]))
        self.eval()

    def _learn(self, task: Task, context: TrainingContext) -> None:
        number, settings = len(self.tasks) - 1, self.settings
        self._check_amounts(task)
        kernels = [(layer, kernel) for layer in self.net.layers() for kernel in layer.kernels()]
        update_masks = [
            UpdateMask(kernel, layer.frozen_channels(number)[:, None, None, None]) for layer, kernel in kernels
        ]
        views, draws = self._random("views"), self._random("rehearsal")
        per_epoch = max(1, round(len(task.train) / settings.plan.batch))

        def loss_of(batch: Batch) -> Tensor:
            own = to_unit(task.train.pixels[batch.index])
            # As many old images as new ones, balanced over old tasks; `_loss` gives every task the same weight.
            share = -(-len(own) // max(1, number))
            old = [self.sample(before, share, draws) for before in range(number)]
            images = augment(torch.cat([own, *old]), settings.augmentation, views)
            old_tasks = torch.arange(number, device=own.device).repeat_interleave(share)
            tasks = torch.cat([torch.full_like(batch.index, number), old_tasks])
            sparsity = settings.sparsity if batch.step >= settings.patience * per_epoch else 0.0
            return self._loss(images, tasks, task.train.labels[batch.index], sparsity)

        def restore() -> None:
            for update_mask in update_masks:
                update_mask.restore()

        self.net.train_only(number)
        fit(
            loss_of,
            self._optimiser([kernel for _, kernel in kernels]),
            settings.plan,
            len(task.train),
            self._random("batches"),
            state=[views, draws],
            task=number,
            after_step=restore,
            context=context,
        )
        self.eval()
        self._freeze(task)
        self._warn(task)
        self._store_samples(task, context)

    def _check_amounts(self, task: Task) -> None:
        if min(len(task.train), self.settings.plan.batch) < 2:
            raise UserError(f"CCG needs batches of at least two images, but those of task '{task.name}' have only one.")
        if self.settings.rehearsal == "episodic" and self.settings.memory < len(self.tasks):
            raise UserError(
                f"A memory of {self.settings.memory} images is too small for {len(self.tasks)} tasks: set memory to at "
                "least one image per task."
            )

    def _optimiser(self, kernels: Sequence[nn.Parameter]) -> Optimizer:
        """A new one for every task: the momentum of an old task would change its frozen kernels."""
        settings, number = self.settings, len(self.tasks) - 1
        classifiers = [p for module in (self.heads[number], self.task_classifier) for p in module.parameters()]
        weights = [*kernels, *self.net.norm_parameters(number), *classifiers]
        gates = self.net.gate_parameters(number)
        return make_optimiser([(settings.optimiser, weights), (settings.gates_optimiser or settings.optimiser, gates)])

    def _loss(self, images: Tensor, tasks: Tensor, labels: Tensor, sparsity: float) -> Tensor:
        """Eq. 7. Images of the new task come first; the losses on classes and gates are computed from them alone."""
        number, n_own = len(self.tasks) - 1, len(labels)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            old = [self.net(images, before)[0] for before in range(number)]
        own, gates = self.net(images, number)
        class_loss = F.cross_entropy(self.heads[number](own[:n_own]), labels)
        balanced = 1 / tasks.bincount()
        task_loss = F.cross_entropy(self.task_classifier([*old, own]), tasks, weight=balanced)
        return class_loss + task_loss + sparsity * open_share([gate[:n_own] for gate in gates])

    @torch.no_grad()
    def _freeze(self, task: Task) -> None:
        """Eq. 5: freeze the channels that were open on the task's images and reinitialise all others.

        The paper uses validation images alone. If there are few, relevant channels may not open on any of them.
        """
        number = len(self.tasks) - 1
        images = Images.join([task.validation, task.train])
        batches = [self.net(to_unit(batch), number)[1] for batch in torch.split(images.pixels, 256)]
        for layer, gates in zip(self.net.layers(), zip(*batches, strict=True), strict=True):
            layer.gate(number).relevant.copy_(torch.cat(gates).mean(0) > self.settings.threshold)
            free = layer.frozen_channels(number + 1) == 0
            for kernel in layer.kernels():
                fresh = nn.init.kaiming_uniform_(torch.empty_like(kernel, device="cpu"), a=5**0.5).to(kernel.device)
                kernel[free] = fresh[free]

    def _warn(self, task: Task) -> None:
        """A closed or a full layer does not stop training, so the user has to be warned."""
        number, layers = len(self.tasks) - 1, list(enumerate(self.net.layers(), start=1))
        if closed := [str(n) for n, layer in layers if not layer.gate(number).relevant.any()]:
            warnings.warn(
                f"Task '{task.name}' closed every channel of layer {', '.join(closed)}: it may have learned nothing. A "
                "lower sparsity or a longer patience helps.",
                stacklevel=4,
            )
        if full := [
            str(n)
            for n, layer in layers
            if layer.frozen_channels(number + 1).all() and not layer.frozen_channels(number).all()
        ]:
            warnings.warn(
                f"No channel is free after task '{task.name}' in layer {', '.join(full)}: later tasks can only reuse "
                "frozen ones. A higher sparsity, a larger learning rate in gates_optimiser or a wider network helps.",
                stacklevel=4,
            )

    def _store_samples(self, task: Task, context: TrainingContext) -> None:
        """Eq. 8: store `memory / t` random images of each of t tasks, or train a generator (Eq. 9)."""
        number = len(self.tasks) - 1
        if self.settings.rehearsal == "generative":
            wgan = self.generators[number]
            assert isinstance(wgan, Generator)
            real = task.train.pixels.float() / 255
            train_generator(wgan, real, self.settings.wgan, self._random("generator"), number, context)
            return
        share = self.settings.memory // len(self.tasks)
        rows = torch.randperm(len(task.train), generator=self._random("memory"))[:share].to(self.device)
        self.memory.shrink_tasks(share)
        self.memory.add(number, task.train.pixels[rows], task.train.labels[rows])

    def sample(self, task: int, n: int, randomness: torch.Generator) -> Tensor:
        """`n` stored or generated images of an old task, in [0, 1]."""
        if self.settings.rehearsal == "generative":
            wgan = self.generators[task]
            assert isinstance(wgan, Generator)
            return to_unit(wgan.sample(n, randomness))
        stored = (self.memory.tasks == task).nonzero().flatten()
        rows = torch.randint(len(stored), (n,), generator=randomness).to(stored.device)
        return to_unit(self.memory.pixels[stored[rows]])

    @torch.no_grad()
    def head_outputs(self, images: Tensor, task: int) -> Tensor:
        """The logits of a task's head, which never change once the task is learned."""
        outputs: Tensor = self.heads[task](self.net(images, task)[0])
        return outputs

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        batches = [self._batch_blocks(to_unit(batch.to(self.device))) for batch in torch.split(pixels, 256)]
        return [torch.cat(block).cpu() for block in zip(*batches, strict=True)]

    def _batch_blocks(self, images: Tensor) -> Blocks:
        images = images.contiguous(memory_format=torch.channels_last)
        features = [self.net(images, task)[0] for task in range(len(self.tasks))]
        log_p_task = self.task_classifier(features).log_softmax(1)
        if self.settings.rule == "hard":
            # The best score of the predicted task is at least -log(tasks x classes), far above -100.
            log_p_task = log_p_task - 1e2 * (log_p_task < log_p_task.amax(1, keepdim=True))
        log_p_class = [head(of_task).log_softmax(1) for head, of_task in zip(self.heads, features, strict=True)]
        return [block + log_p_task[:, task, None] for task, block in enumerate(log_p_class)]

    def features(self, pixels: Tensor, task: int) -> Tensor:
        with torch.no_grad():
            batches = torch.split(pixels, 256)
            return torch.cat([self.net(to_unit(batch.to(self.device)), task)[0] for batch in batches]).cpu()

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)
