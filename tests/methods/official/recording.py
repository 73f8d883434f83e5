"""Training steps of our methods from fixed weights on fixed images, to be compared with those of the official code.

Weights and images come from formulas, so that the official code can be run on the same ones. A tensor is compared by
two numbers (`digest`), which no two different gradients share in practice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clom.data.images import Images
from clom.data.stream import Task
from clom.learning import loop
from clom.learning.context import State, TrainingContext
from clom.learning.progress import Progress

Digest = tuple[float, float]


def wave(shape: Sequence[int], number: int, scale: float = 1.0) -> Tensor:
    """`scale sin(0.7 i + i^2 / 100 + number)` for the i-th entry."""
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return (scale * torch.sin(0.7 * index + index.square() / 100 + number)).float().view(*shape)


def fixed_pixels(n: int, channels: int, size: int, first: int = 0) -> Tensor:
    """`(7 i^2 + 13 i) mod 251` for the i-th pixel, counted from `first`."""
    index = torch.arange(first, first + n * channels * size * size)
    return ((7 * index * index + 13 * index) % 251).to(torch.uint8).view(n, channels, size, size)


def fixed_task(n: int, channels: int, size: int, classes: Sequence[str] = ("c", "d")) -> Task:
    """A task of n training images and two validation images, with labels in turn."""
    labels = torch.arange(n) % len(classes)
    held_out = Images(fixed_pixels(2, channels, size, first=1000), torch.arange(2))
    return Task("second", tuple(classes), Images(fixed_pixels(n, channels, size), labels), held_out)


def two_layers() -> nn.Module:
    """A network for images of 3 x 4 x 4."""
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())


def digest(values: Tensor) -> Digest:
    """The norm, and the component in the direction with entries proportional to cos(i)."""
    flat = values.detach().double().flatten()
    direction = torch.arange(len(flat), dtype=torch.float64).cos()
    return float(flat.norm()), float(flat @ direction / direction.norm())


def agrees(values: Tensor, official: Digest, tolerance: float = 1e-5) -> bool:
    """Whether the digest is the official one up to this share of the norm, and up to the rounding of float32."""
    return digest(values) == pytest.approx(official, rel=0, abs=max(1e-6, tolerance * official[0]))


def differing(tensors: Sequence[Tensor], official: Mapping[str, Digest], tolerance: float = 1e-5) -> list[str]:
    """The names of the tensors that differ from the official ones, which are in the same order."""
    pairs = zip(tensors, official.items(), strict=True)
    return [name for tensor, (name, expected) in pairs if not agrees(tensor, expected, tolerance)]


def fill(tensors: Sequence[Tensor], first: int = 0, scale: float = 1.0) -> None:
    """Set the k-th tensor to the wave with number `first` + k."""
    with torch.no_grad():
        for number, tensor in enumerate(tensors, start=first):
            tensor.copy_(wave(tensor.shape, number, scale))


@dataclass(frozen=True)
class Step:
    """One step of an optimiser; gradients and changes are in the order of the optimiser's parameters."""

    phase: int
    loss: float
    gradients: list[Tensor]
    changes: list[Tensor]
    """By the step, and by whatever the method does to it."""


class StepRecorder(TrainingContext):
    """Records the steps of all phases of a task. `prepare` may set parameters at the start of each phase."""

    def __init__(self, prepare: Callable[[int, list[nn.Parameter]], None]) -> None:
        super().__init__(on_progress=self._after_step)
        self.prepare = prepare
        self.recorded: list[Step] = []
        self.gradients: list[list[Tensor]] = []
        """At every call of an optimiser, including copies that look ahead."""
        self._phase = -1
        self._parameters: list[nn.Parameter] = []
        self._before: list[Tensor] = []

    def steps(self, total: int, *parts: State, ended: Callable[[], bool] = lambda: False) -> Iterator[int]:
        (optimiser,) = (part for part in parts if isinstance(part, Optimizer))
        self._phase += 1
        self._parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        self.prepare(self._phase, self._parameters)
        optimiser.register_step_pre_hook(self._before_step)
        return super().steps(total, *parts, ended=ended)

    def _before_step(self, optimiser: Optimizer, args: object, options: object) -> None:
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        self.gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    def _after_step(self, progress: Progress) -> None:
        if math.isfinite(progress.loss):  # a training step, not another kind of progress
            changes = [after.detach() - before for after, before in zip(self._parameters, self._before, strict=True)]
            self.recorded.append(Step(self._phase, progress.loss, self.gradients[-1], changes))


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches hold the images in their order instead of shuffled."""

    def batches(n: int, batch: int, randomness: torch.Generator, device: torch.device | None = None) -> object:
        return torch.arange(n).tensor_split(max(1, round(n / batch)))

    monkeypatch.setattr(loop, "shuffled_batches", batches)
