"""CCG: conditional channel gated networks (Abati et al. 2020).

There is no official code. Equation numbers follow the specification: 1-6 agree with an unofficial implementation of the
task-incremental part, 7 and 8 (how losses and memory combine) are recalled from the paper and unverified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.memory import Memory
from clom.data.stream import Task
from clom.data.views import Augmentation, augment
from clom.learning.loop import Batch, Plan, Report, fit, generator
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection import Guard
from clom.learning.wgan import Generator, WganSettings, train_generator
from clom.methods.base import Blocks, LearnedTask, Method, seeded
from clom.nets import NetSettings
from clom.nets.conditional import ConditionalResNetSettings, ConvSettings, make_conditional_net
from clom.nets.plain import LinearHead
from clom.settings import Count, NonNegative, Positive, Settings


class CcgSettings(Settings):
    network: ConvSettings | ConditionalResNetSettings = ConvSettings()
    """The method has a network of its own; the experiment's is not used."""
    sparsity: NonNegative = 0.5
    patience: Count = 10
    """Epochs before sparsity sets in."""
    rehearsal: Literal["episodic", "generative"] = "episodic"
    memory: Positive = 200
    """Images in all, shared by the tasks."""
    wgan: WganSettings = WganSettings()
    rule: Literal["soft", "hard"] = "soft"
    """`hard`, the paper's: first the task, then its class. `soft`, ours: the most probable pair of both."""
    plan: Plan = Plan()
    optimiser: OptimiserSettings = OptimiserSettings(kind="adam", lr=1e-3)
    augmentation: Augmentation = Augmentation(flip=False, colour=False, crop=False)


class TaskClassifier(nn.Module):
    """Eq. 6: all streams' features to a task. Grows without changing what it said about the older tasks."""

    def __init__(self, n_features: int, hidden: int = 64) -> None:
        super().__init__()
        self.n_features, self.hidden = n_features, hidden
        self.columns = nn.ModuleList()
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.rows = LinearHead(hidden)

    def grow(self) -> None:
        column = nn.Linear(self.n_features, self.hidden, bias=False)
        if len(self.columns):
            nn.init.zeros_(column.weight)
        self.columns.append(column)
        self.rows.grow(1)

    def forward(self, streams: Sequence[Tensor]) -> Tensor:
        parts = [column(features) for column, features in zip(self.columns, streams, strict=True)]
        logits: Tensor = self.rows(F.relu(torch.stack(parts).sum(0) + self.bias))
        return logits


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

    def capacity(self) -> dict[str, list[float]]:
        layers = enumerate(self.net.layers(), start=1)
        return {
            f"layer {number}": [float(layer.frozen(task + 1).mean()) for task in range(len(self.tasks))]
            for number, layer in layers
        }

    def _open_task(self, task: LearnedTask) -> None:
        self.net.add_task()
        self.heads.append(nn.Linear(self.net.n_features, task.n_classes))
        self.task_classifier.grow()
        if self.settings.rehearsal == "generative":
            self.generators.append(Generator(self.settings.wgan, self.image_shape[0], self.image_shape[-1]))
        self.eval()

    def _learn(self, task: Task, report: Report) -> None:
        number, how = len(self.tasks) - 1, self.settings
        kernels = [(layer, kernel) for layer in self.net.layers() for kernel in layer.kernels()]
        guards = [Guard(kernel, layer.frozen(number)[:, None, None, None]) for layer, kernel in kernels]
        parts = (self.heads[number], self.task_classifier)
        trained = [
            *(kernel for _, kernel in kernels),
            *self.net.task_parameters(number),
            *(p for part in parts for p in part.parameters()),
        ]
        views, draws = self._random("views"), self._random("rehearsal")
        per_epoch = max(1, round(len(task.train) / how.plan.batch))

        def loss_of(batch: Batch) -> Tensor:
            own = augment(to_unit(task.train.pixels[batch.index]), how.augmentation, views)
            old = [augment(self.sample(before, len(own), draws), how.augmentation, views) for before in range(number)]
            strength = how.sparsity if batch.step >= how.patience * per_epoch else 0.0
            return self._loss(torch.cat([own, *old]), task.train.labels[batch.index], number, strength)

        def restore() -> None:
            for guard in guards:
                guard.restore()

        self.net.train_only(number)
        optimiser, order = make_optimiser([(how.optimiser, trained)]), self._random("batches")
        fit(loss_of, optimiser, how.plan, len(task.train), order, task=number, after_step=restore, report=report)
        self.eval()
        self._freeze(task)
        self._remember(task, report)

    def _loss(self, images: Tensor, labels: Tensor, number: int, strength: float) -> Tensor:
        """Eq. 7; the task's own images come first, then as many of each older task."""
        n_own = len(labels)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            streams = [self.net(images, before)[0] for before in range(number)]
        own, gates = self.net(images, number)
        class_loss = F.cross_entropy(self.heads[number](own[:n_own]), labels)
        sparsity = torch.stack([gate[:n_own].mean() for gate in gates]).mean()  # Eq. 4
        tasks = torch.cat([torch.full((n_own,), number), *(torch.full((n_own,), before) for before in range(number))])
        task_loss = F.cross_entropy(self.task_classifier([*streams, own]), tasks)
        return class_loss + task_loss + strength * sparsity

    @torch.no_grad()
    def _freeze(self, task: Task) -> None:
        """Eq. 5: what fired on validation data is the task's for ever; all other channels start anew."""
        number = len(self.tasks) - 1
        shown = task.validation if len(task.validation) else task.train
        fired: list[Tensor] = []
        for part in torch.split(shown.pixels, 256):
            now = [gate.amax(0) for gate in self.net(to_unit(part), number)[1]]
            fired = [torch.maximum(a, b) for a, b in zip(fired, now, strict=True)] if fired else now
        for layer, relevant in zip(self.net.layers(), fired, strict=True):
            layer.gate(number).relevant.copy_(relevant)
            free = layer.frozen(number + 1) == 0
            for kernel in layer.kernels():
                kernel[free] = nn.init.kaiming_uniform_(torch.empty_like(kernel), a=5**0.5)[free]

    def _remember(self, task: Task, report: Report) -> None:
        """Eq. 8: each of t tasks keeps `memory / t` random images; or a generator makes them anew (Eq. 9)."""
        number = len(self.tasks) - 1
        if self.settings.rehearsal == "generative":
            maker = self.generators[number]
            assert isinstance(maker, Generator)
            real = task.train.pixels.float() / 255
            train_generator(maker, real, self.settings.wgan, self._random("generator"), number, report)
            return
        share = self.settings.memory // len(self.tasks)
        rows = torch.randperm(len(task.train), generator=self._random("memory"))[:share]
        self.memory.shrink_tasks(share)
        self.memory.add(number, task.train.pixels[rows], task.train.labels[rows])

    def sample(self, task: int, n: int, randomness: torch.Generator) -> Tensor:
        """`n` images of an old task in [0, 1], from whichever memory there is."""
        if self.settings.rehearsal == "generative":
            maker = self.generators[task]
            assert isinstance(maker, Generator)
            return to_unit(maker.sample(n, randomness))
        stored = (self.memory.tasks == task).nonzero().flatten()
        return to_unit(self.memory.pixels[stored[torch.randint(len(stored), (n,), generator=randomness)]])

    @torch.no_grad()
    def stream(self, images: Tensor, task: int) -> Tensor:
        """Outputs of a task's own head: what never changes once the task is learned."""
        outputs: Tensor = self.heads[task](self.net(images, task)[0])
        return outputs

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        parts = [self._blocks(to_unit(part)) for part in torch.split(pixels, 256)]
        return [torch.cat(block) for block in zip(*parts, strict=True)]

    def _blocks(self, images: Tensor) -> Blocks:
        images = images.contiguous(memory_format=torch.channels_last)
        streams = [self.net(images, task)[0] for task in range(len(self.tasks))]
        log_p_task = self.task_classifier(streams).log_softmax(1)
        if self.settings.rule == "hard":  # a constant larger than any difference of log-probabilities that matters
            log_p_task = log_p_task - 1e3 * (log_p_task < log_p_task.amax(1, keepdim=True))
        heads = [head(features).log_softmax(1) for head, features in zip(self.heads, streams, strict=True)]
        return [block + log_p_task[:, task, None] for task, block in enumerate(heads)]

    def features(self, pixels: Tensor, task: int) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.net(to_unit(part), task)[0] for part in torch.split(pixels, 256)])

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)
