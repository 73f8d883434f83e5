"""DER++: a reservoir of images with the outputs they once had; replay holds on to both labels and outputs.

Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020. Nothing happens at a task's end: the
reservoir is filled while training, and no old network is kept. Where this differs from the authors' code:

- The head grows with the tasks instead of having all outputs from the start. Stored outputs are compared with as many
  outputs as there were when they were stored (zeros in their place would pull the new classes' outputs to zero), and
  the cross-entropy is over the classes seen so far.
- Each task begins with a new optimiser, which makes no difference for the authors' plain SGD.

One image can be stored several times, since it is offered in every epoch, and classes are balanced only on average;
both as in the authors' code. Answers are over the classes seen so far.
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
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings
from clom.settings import Count, NonNegative, Positive, Settings

Draw = Callable[[int], int]
"""A whole number from 0 to less than the given one, all equally likely."""


class ReservoirSettings(Settings):
    size: Count = 200
    """Images in all, whatever the number of classes."""


class DerppSettings(SharedSettings):
    memory: ReservoirSettings = ReservoirSettings()
    alpha: NonNegative = 0.5
    """Weight of the stored outputs. It belongs to the mean over outputs, not to the paper's squared norm."""
    beta: NonNegative = 0.5
    """Weight of the stored labels. The paper calls 0.5 for both a safe choice."""
    replay_batch: Positive = 32


class Derpp(SharedNetwork):
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
        self.reservoir.widen(self.n_seen)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pixels, labels = self.new_data(task)
        choices, views, places = (self.random(name) for name in ("replay draws", "replay views", "reservoir"))
        replay, draw = self._replay(choices, views), uniform(places)
        fresh: list[tuple[Tensor, Tensor, Tensor]] = []

        def loss_of(images: Tensor, rows: Tensor) -> Tensor:
            outputs = self.logits(images)
            # The image as it is, and what the network says to this view of it before the step.
            fresh.append((pixels[rows], labels[rows], outputs.detach().clone()))
            return F.cross_entropy(outputs, labels[rows]) + replay()

        def offer() -> None:
            self.reservoir.offer(*fresh.pop(), draw)

        # Rows in place of labels: the reservoir wants the images that the views were made of.
        rows, state = torch.arange(len(labels), device=labels.device), [choices, views, places]
        self.train_on(pixels, rows, loss_of, list(self.parameters()), context, state=state, after_step=offer)

    def _replay(self, choices: torch.Generator, views: torch.Generator) -> Callable[[], Tensor]:
        """The two terms of the reservoir, each with its own draw, its own views and its own batch statistics."""
        settings, stored = self.settings, self.reservoir

        def outputs_of(slots: Tensor) -> Tensor:
            images = augment(to_unit(stored.pixels[slots]), settings.augmentation, views)
            return self.logits(images.contiguous(memory_format=torch.channels_last))

        def loss() -> Tensor:
            total = torch.zeros((), device=stored.outputs.device)
            if len(stored) < 2:  # empty at the first step; and a single image has no batch statistics
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
    """Mean squared difference, for every image over the first `widths` outputs: later ones were not there yet."""
    compared = torch.arange(outputs.shape[1], device=widths.device) < widths[:, None]
    return (outputs - stored).pow(2)[compared].mean()


class Reservoir(nn.Module):
    """Of all items ever offered, each is here with the same probability. A module, so that it is saved with the model.

    All places exist from the start; the first `len(self)` of them are taken. Labels count through all tasks.
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
        """Images and outputs of the places that are taken."""
        taken = slice(len(self))
        return self.pixels[taken].numel() + int(self.widths[taken].sum()) * self.outputs.element_size()

    def widen(self, n_outputs: int) -> None:
        """Make room for longer outputs; those that are stored keep their length."""
        self.outputs = F.pad(self.outputs, (0, n_outputs - self.outputs.shape[1]))

    def offer(self, pixels: Tensor, labels: Tensor, outputs: Tensor, draw: Draw) -> None:
        """Item number N (from 0) takes place N, or if all are taken the place r that is drawn from 0 to N, if any."""
        width = outputs.shape[1]
        for item in range(len(labels)):
            number = int(self.offered)
            self.offered += 1
            place = number if number < self.size else draw(number + 1)
            if place < self.size:
                self.pixels[place], self.labels[place] = pixels[item], labels[item]
                self.outputs[place, :width], self.widths[place] = outputs[item], width

    def sample(self, count: int, randomness: torch.Generator) -> Tensor:
        """`count` different places, or all that are taken."""
        return torch.randperm(len(self), generator=randomness)[:count].to(self.labels.device)


def uniform(randomness: torch.Generator) -> Draw:
    return lambda bound: int(torch.randint(bound, (1,), generator=randomness))
