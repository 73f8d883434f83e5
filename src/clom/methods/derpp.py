"""DER++: replay from a reservoir of images, matching both their labels and their earlier logits.

Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020. Nothing happens at the end of a task: the
reservoir is filled during training, and no old network is stored.

As published, the head has the outputs of all classes from the start (`n_classes`): the cross-entropy and the stored
logits are over all of them, so that an image stored early also holds down the outputs of later classes. Predictions
are among the classes seen so far. Where the number of classes is unknown or exceeded, the head grows; stored logits are
then compared with the outputs that existed when they were stored, since zero padding would pull the logits of new
classes to zero.

As in the authors' code, an image can be stored several times, since it is offered in every epoch, and classes are
balanced only in expectation. Each task starts with a new optimiser, which makes no difference for the authors' plain
SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import augment
from clom.learning.context import TrainingContext
from clom.methods.families.base import LearnedTask
from clom.methods.families.shared import FullHeadNetwork, FullHeadSettings
from clom.nets import NetSettings
from clom.settings import Count, NonNegative, Positive, Settings

Draw = Callable[[int], int]
"""A uniform random integer from 0 to below the given bound."""


class ReservoirSettings(Settings):
    size: Count = 200
    """Total number of images, independent of the number of classes."""


class DerppSettings(FullHeadSettings):
    memory: ReservoirSettings = ReservoirSettings()
    alpha: NonNegative = 0.5
    """Weight of the loss on stored logits, which is a mean over outputs, not the paper's squared norm."""
    beta: NonNegative = 0.5
    """Weight of the loss on stored labels. The paper calls 0.5 for both weights a safe choice."""
    replay_batch: Positive = 32


class Derpp(FullHeadNetwork):
    """`CE(h(x), y) + alpha MSE(h(x'), z') + beta CE(h(x''), y'')` with two draws x', x'' from the reservoir."""

    name = "derpp"
    settings_type = DerppSettings
    settings: DerppSettings

    def __init__(self, net: NetSettings, settings: DerppSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.reservoir = Reservoir(settings.memory.size, self.image_shape)

    @property
    def memory_bytes(self) -> int:
        return self.reservoir.n_bytes

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        self.reservoir.widen(self.head.n_outputs)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pixels, labels = self.new_data(task)
        choices, views, slots = (self.random(name) for name in ("replay draws", "replay views", "reservoir"))
        replay, draw = self._replay(choices, views), uniform(slots)
        fresh: list[tuple[Tensor, Tensor, Tensor]] = []

        def loss_of(images: Tensor, rows: Tensor) -> Tensor:
            outputs = self.logits(images)
            # The image before augmentation, and the logits of this view before the step.
            fresh.append((pixels[rows], labels[rows], outputs.detach().clone()))
            return F.cross_entropy(outputs, labels[rows]) + replay()

        def offer() -> None:
            self.reservoir.offer(*fresh.pop(), draw)

        # Rows in place of labels: the reservoir stores the images before augmentation.
        rows, state = torch.arange(len(labels), device=labels.device), [choices, views, slots]
        self.train_on(pixels, rows, loss_of, list(self.parameters()), context, state=state, after_step=offer)

    def _replay(self, choices: torch.Generator, views: torch.Generator) -> Callable[[], Tensor]:
        """The two replay terms, each with its own sample, augmentation and batch statistics."""
        settings, stored = self.settings, self.reservoir

        def outputs_of(slots: Tensor) -> Tensor:
            images = augment(to_unit(stored.pixels[slots]), settings.augmentation, views)
            return self.logits(images.contiguous(memory_format=torch.channels_last))

        def loss() -> Tensor:
            total = torch.zeros((), device=stored.outputs.device)
            if len(stored) < 2:  # empty at the first step; batch statistics need two images
                return total
            if settings.alpha:
                slots = stored.sample(settings.replay_batch, choices)
                total = total + settings.alpha * output_loss(
                    outputs_of(slots), stored.outputs[slots], stored.widths[slots]
                )
            if settings.beta:
                slots = stored.sample(settings.replay_batch, choices)
                total = total + settings.beta * F.cross_entropy(outputs_of(slots), stored.labels[slots])
            return total

        return loss


def output_loss(outputs: Tensor, stored: Tensor, widths: Tensor) -> Tensor:
    """Mean squared difference over the first `widths` outputs of each image, those that existed when it was stored."""
    compared = torch.arange(outputs.shape[1], device=widths.device) < widths[:, None]
    return (outputs - stored).pow(2)[compared].mean()


class Reservoir(nn.Module):
    """Reservoir sampling: every item ever offered is stored with the same probability.

    A module, so that it is saved with the model. All slots are allocated from the start; the first `len(self)` are
    filled. Labels are over all tasks.
    """

    pixels: Tensor
    labels: Tensor
    outputs: Tensor
    widths: Tensor
    offered: Tensor

    def __init__(self, size: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("pixels", torch.zeros(size, *image_shape, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("outputs", torch.zeros(size, 0))
        self.register_buffer("widths", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("offered", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return min(self.size, int(self.offered))

    @property
    def n_bytes(self) -> int:
        """Images and logits in the filled slots."""
        filled = slice(len(self))
        return self.pixels[filled].numel() + int(self.widths[filled].sum()) * self.outputs.element_size()

    def widen(self, n_outputs: int) -> None:
        """Make room for more outputs; stored logits keep their width."""
        self.outputs = F.pad(self.outputs, (0, n_outputs - self.outputs.shape[1]))

    def offer(self, pixels: Tensor, labels: Tensor, outputs: Tensor, draw: Draw) -> None:
        """Item N (from 0) fills slot N; once all are filled it replaces slot r, drawn from 0 to N, if there is one."""
        width = outputs.shape[1]
        for item in range(len(labels)):
            number = int(self.offered)
            self.offered += 1
            slot = number if number < self.size else draw(number + 1)
            if slot < self.size:
                self.pixels[slot], self.labels[slot] = pixels[item], labels[item]
                self.outputs[slot, :width], self.widths[slot] = outputs[item], width

    def sample(self, count: int, randomness: torch.Generator) -> Tensor:
        """Up to `count` different filled slots."""
        return torch.randperm(len(self), generator=randomness)[:count].to(self.labels.device)


def uniform(randomness: torch.Generator) -> Draw:
    return lambda bound: int(torch.randint(bound, (1,), generator=randomness))
