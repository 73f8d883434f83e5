"""CCG: conditional channel gated networks (Abati et al. 2020).

There is no official code. Equation numbers follow the specification: 1-6 agree with an unofficial implementation of the
task-incremental part, 7 and 8 (how losses and memory combine) are recalled from the paper and unverified.
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
    """The method has a network of its own; the experiment's is not used."""
    sparsity: NonNegative = 0.5
    patience: Count = 10
    """Epochs before sparsity sets in."""
    threshold: Fraction = 0.0
    """A channel is relevant for a task if it fired on more than this share of its validation images. The paper: 0, the
    unofficial implementation: 0.001."""
    rehearsal: Literal["episodic", "generative"] = "episodic"
    memory: Positive = 200
    """Images in all, shared by the tasks."""
    wgan: WganSettings = WganSettings()
    rule: Literal["soft", "hard"] = "soft"
    """`hard`, the paper's: first the task, then its class. `soft`, ours: the most probable pair of both."""
    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    gates_optimiser: OptimiserSettings | None = None
    """Ours: gates of a short training close only at a larger rate of their own; by default they use `optimiser`."""
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)


def open_share(gates: Sequence[Tensor]) -> Tensor:
    """Eq. 4 without its strength: the share of channels that are on, mean over images and layers."""
    return torch.stack([gate.mean() for gate in gates]).mean()


class Ccg(Method):
    """Channels that fired for a task are frozen after it; a task classifier with rehearsal names the task."""

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
        """Generators are memory: answering does not need them."""
        return super().n_parameters() - sum(p.numel() for p in self.generators.parameters())

    def capacity(self) -> dict[str, list[float]]:
        tasks = range(1, len(self.tasks) + 1)
        layers = enumerate(self.net.layers(), start=1)
        return {f"layer {n}": [round(float(layer.frozen(t).mean()), 4) for t in tasks] for n, layer in layers}

    def _open_task(self, task: LearnedTask) -> None:
        self.net.add_task()
        self.heads.append(nn.Linear(self.net.n_features, task.n_classes))
        self.task_classifier.grow()
        if self.settings.rehearsal == "generative":
            self.generators.append(Generator(self.settings.wgan, self.image_shape[0], self.image_shape[-1]))
        self.eval()

    def _learn(self, task: Task, context: TrainingContext) -> None:
        number, how = len(self.tasks) - 1, self.settings
        self._check_amounts(task)
        kernels = [(layer, kernel) for layer in self.net.layers() for kernel in layer.kernels()]
        update_masks = [UpdateMask(kernel, layer.frozen(number)[:, None, None, None]) for layer, kernel in kernels]
        views, draws = self._random("views"), self._random("rehearsal")
        per_epoch = max(1, round(len(task.train) / how.plan.batch))

        def loss_of(batch: Batch) -> Tensor:
            own = to_unit(task.train.pixels[batch.index])
            # As many old images as new ones, all old tasks alike; `_loss` gives every task the same weight.
            share = -(-len(own) // max(1, number))
            old = [self.sample(before, share, draws) for before in range(number)]
            images = augment(torch.cat([own, *old]), how.augmentation, views)
            old_tasks = torch.arange(number, device=own.device).repeat_interleave(share)
            tasks = torch.cat([torch.full_like(batch.index, number), old_tasks])
            strength = how.sparsity if batch.step >= how.patience * per_epoch else 0.0
            return self._loss(images, tasks, task.train.labels[batch.index], strength)

        def restore() -> None:
            for update_mask in update_masks:
                update_mask.restore()

        self.net.train_only(number)
        optimiser = self._optimiser([kernel for _, kernel in kernels])
        order, state = self._random("batches"), [views, draws]
        fit(
            loss_of,
            optimiser,
            how.plan,
            len(task.train),
            order,
            state=state,
            task=number,
            after_step=restore,
            context=context,
        )
        self.eval()
        self._freeze(task)
        self._warn(task)
        self._remember(task, context)

    def _check_amounts(self, task: Task) -> None:
        if min(len(task.train), self.settings.plan.batch) < 2:
            raise UserError(f"CCG learns from batches of at least two images; task '{task.name}' allows only one.")
        if self.settings.rehearsal == "episodic" and self.settings.memory < len(self.tasks):
            raise UserError(
                f"A memory of {self.settings.memory} images is too small for {len(self.tasks)} tasks: give `memory` "
                "at least one image per task."
            )

    def _optimiser(self, kernels: Sequence[nn.Parameter]) -> Optimizer:
        """Fresh for every task: the momentum of an old task would move its frozen kernels."""
        how, number = self.settings, len(self.tasks) - 1
        rest = [p for part in (self.heads[number], self.task_classifier) for p in part.parameters()]
        plain = [*kernels, *self.net.norm_parameters(number), *rest]
        gates = self.net.gate_parameters(number)
        return make_optimiser([(how.optimiser, plain), (how.gates_optimiser or how.optimiser, gates)])

    def _loss(self, images: Tensor, tasks: Tensor, labels: Tensor, strength: float) -> Tensor:
        """Eq. 7; the images of the task being learned come first, the only ones whose classes and gates count."""
        number, n_own = len(self.tasks) - 1, len(labels)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            streams = [self.net(images, before)[0] for before in range(number)]
        own, gates = self.net(images, number)
        class_loss = F.cross_entropy(self.heads[number](own[:n_own]), labels)
        each_task_alike = 1 / tasks.bincount()
        task_loss = F.cross_entropy(self.task_classifier([*streams, own]), tasks, weight=each_task_alike)
        return class_loss + task_loss + strength * open_share([gate[:n_own] for gate in gates])

    @torch.no_grad()
    def _freeze(self, task: Task) -> None:
        """Eq. 5: what fired on the task's images is the task's for ever; all other channels start anew.

        The paper asks validation images alone. Where these are few, channels that matter do not fire on any of them.
        """
        number = len(self.tasks) - 1
        shown = Images.join([task.validation, task.train])
        portions = [self.net(to_unit(part), number)[1] for part in torch.split(shown.pixels, 256)]
        for layer, gates in zip(self.net.layers(), zip(*portions, strict=True), strict=True):
            layer.gate(number).relevant.copy_(torch.cat(gates).mean(0) > self.settings.threshold)
            free = layer.frozen(number + 1) == 0
            for kernel in layer.kernels():
                fresh = nn.init.kaiming_uniform_(torch.empty_like(kernel, device="cpu"), a=5**0.5).to(kernel.device)
                kernel[free] = fresh[free]

    def _warn(self, task: Task) -> None:
        """Neither a dead stream nor a full layer stops learning, so it must be said."""
        number, layers = len(self.tasks) - 1, list(enumerate(self.net.layers(), start=1))
        if dead := [str(n) for n, layer in layers if not layer.gate(number).relevant.any()]:
            warnings.warn(
                f"Task '{task.name}' closed every channel of layer {', '.join(dead)}: it may have learned nothing. A "
                "lower sparsity or a longer patience helps.",
                stacklevel=4,
            )
        if full := [str(n) for n, layer in layers if layer.frozen(number + 1).all() and not layer.frozen(number).all()]:
            warnings.warn(
                f"No channel is free after task '{task.name}' in layer {', '.join(full)}: later tasks can only reuse "
                "what is there. A higher sparsity, a larger rate in gates_optimiser or a wider network helps.",
                stacklevel=4,
            )

    def _remember(self, task: Task, context: TrainingContext) -> None:
        """Eq. 8: each of t tasks keeps `memory / t` random images; or a generator makes them anew (Eq. 9)."""
        number = len(self.tasks) - 1
        if self.settings.rehearsal == "generative":
            maker = self.generators[number]
            assert isinstance(maker, Generator)
            real = task.train.pixels.float() / 255
            train_generator(maker, real, self.settings.wgan, self._random("generator"), number, context)
            return
        share = self.settings.memory // len(self.tasks)
        rows = torch.randperm(len(task.train), generator=self._random("memory"))[:share].to(self.device)
        self.memory.shrink_tasks(share)
        self.memory.add(number, task.train.pixels[rows], task.train.labels[rows])

    def sample(self, task: int, n: int, randomness: torch.Generator) -> Tensor:
        """`n` images of an old task in [0, 1], from whichever memory there is."""
        if self.settings.rehearsal == "generative":
            maker = self.generators[task]
            assert isinstance(maker, Generator)
            return to_unit(maker.sample(n, randomness))
        stored = (self.memory.tasks == task).nonzero().flatten()
        rows = torch.randint(len(stored), (n,), generator=randomness).to(stored.device)
        return to_unit(self.memory.pixels[stored[rows]])

    @torch.no_grad()
    def stream(self, images: Tensor, task: int) -> Tensor:
        """Outputs of a task's own head: what never changes once the task is learned."""
        outputs: Tensor = self.heads[task](self.net(images, task)[0])
        return outputs

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        parts = [self._blocks(to_unit(part.to(self.device))) for part in torch.split(pixels, 256)]
        return [torch.cat(block).cpu() for block in zip(*parts, strict=True)]

    def _blocks(self, images: Tensor) -> Blocks:
        images = images.contiguous(memory_format=torch.channels_last)
        streams = [self.net(images, task)[0] for task in range(len(self.tasks))]
        log_p_task = self.task_classifier(streams).log_softmax(1)
        if (
            self.settings.rule == "hard"
        ):  # the named task's best score is at least -log(tasks x classes): far above -100
            log_p_task = log_p_task - 1e2 * (log_p_task < log_p_task.amax(1, keepdim=True))
        heads = [head(features).log_softmax(1) for head, features in zip(self.heads, streams, strict=True)]
        return [block + log_p_task[:, task, None] for task, block in enumerate(heads)]

    def features(self, pixels: Tensor, task: int) -> Tensor:
        with torch.no_grad():
            parts = [self.net(to_unit(part.to(self.device)), task)[0] for part in torch.split(pixels, 256)]
            return torch.cat(parts).cpu()

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)
