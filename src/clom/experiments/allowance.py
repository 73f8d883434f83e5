"""The passes of a run, predicted before it starts, and the length of training that fits an allowance.

A preview learns every task, with a few steps of each phase, and its networks compute only the first images of a batch.
What a step costs is counted as in a run (`clom.nets.passes`) and multiplied by the number of steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.experiments.config import RunConfig
from clom.experiments.defaults import scale_epochs
from clom.learning.context import State, TrainingContext
from clom.learning.loop import Batches
from clom.learning.progress import Progress
from clom.learning.random_states import fork_random_states
from clom.methods.families.base import LearnedTask, Method, seeded
from clom.nets import NetSettings
from clom.nets.data_parallel import unsplit
from clom.nets.passes import PassCounter, counting, multiply_adds
from clom.nets.plain import Backbone
from clom.settings import flatten

_FIRST_STEPS = 4  # previewed as they are: a replay buffer may fill up during them
_ROWS = 2  # images that a network computes in a preview: batch norm needs two


@dataclass(frozen=True)
class PlannedPasses:
    """The predicted passes of a run: those that do not depend on the numbers of epochs, and those that do."""

    fixed: float
    per_length: float
    """With all numbers of epochs multiplied by a factor, these are multiplied by it as well."""

    @property
    def total(self) -> float:
        return self.at(1.0)

    def at(self, factor: float) -> float:
        """The passes with all numbers of epochs multiplied by `factor`."""
        return self.fixed + self.per_length * factor


def pass_counter(config: RunConfig, image_size: int) -> PassCounter:
    """Counts passes through the experiment's own network."""
    return PassCounter(_unit(config.unit_net, image_size))


def planned_passes(config: RunConfig, stream: Stream) -> PlannedPasses:
    """Predict the passes of a run; within a few percent for any method."""
    counter = _PreviewCounter(_unit(config.unit_net, stream.image_shape[-1]))
    with fork_random_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what the preview learned
        method, context = config.make_method(stream.image_shape), _Preview(counter)
        for task in stream:
            _preview(method, task, context)
    return PlannedPasses(counter.total - context.per_length, context.per_length)


def with_passes(config: RunConfig, stream: Stream, passes: float) -> RunConfig:
    """The same run with all numbers of epochs multiplied by one factor, so that it uses at most `passes`.

    Numbers of epochs are rounded down, but are at least 1; UserError if even that is too much.
    """
    planned = planned_passes(config, stream)
    factor = max(0.0, (passes - planned.fixed) / planned.per_length) if planned.per_length else 1.0
    scaled = _with_length(config, factor)
    least = planned_passes(scaled, stream).total if factor < 1 else planned.at(factor)
    if least > passes * (1 + 1e-9):
        raise UserError(
            f"'{config.method}' cannot learn {config.experiment} with {passes:,.0f} passes: the shortest training "
            f"takes {least:,.0f}."
        )
    return scaled


def _with_length(config: RunConfig, factor: float) -> RunConfig:
    settings = scale_epochs(config.settings, factor, lambda epochs: math.floor(epochs + 1e-9))
    before, after = flatten(config.settings), flatten(settings)
    changes = {name: value for name, value in after.items() if before.get(name) != value}
    overrides = dict(sorted({**config.overrides, **changes}.items()))
    return config.model_copy(update={"settings": settings, "overrides": overrides})


def _unit(net: NetSettings, image_size: int) -> float:
    with fork_random_states():
        backbone = Backbone(net, image_size).eval()
    return multiply_adds(backbone, torch.zeros(1, 3, image_size, image_size))


def _preview(method: Method, task: Task, context: TrainingContext) -> None:
    """Learn one more task, without the checks of `Method.learn`: what a preview learns is of no use."""
    context.attach(method)
    with seeded(method.seed, "learn", len(method.tasks)), counting(context.passes):
        method.open_task(LearnedTask(task.name, task.class_names))
        method._learn(task, context)


class _PreviewCounter(PassCounter):
    """Counts all images, but computes only the first ones and repeats their outputs."""

    def _forward(self, forward: Callable[..., Any], images: Tensor, *args: Any, **options: Any) -> Any:
        n_images = len(images)
        if n_images <= _ROWS:
            return super()._forward(forward, images, *args, **options)
        rows = torch.arange(n_images, device=images.device) % _ROWS
        with unsplit():
            outputs = super()._forward(forward, images[:_ROWS], *args, **options)
        return tree_map(lambda output: output[rows] if isinstance(output, Tensor) else output, outputs)

    def _rows(self, images: Tensor) -> int:
        return min(_ROWS, len(images))


class _Preview(TrainingContext):
    """Takes a few steps of each phase and counts the passes of all of them."""

    def __init__(self, passes: PassCounter) -> None:
        super().__init__(passes=passes)
        self.counter, self.per_length = passes, 0.0

    def report_step(self, progress: Progress, loss: Tensor) -> None:
        """The loss does not matter."""

    def report(self, progress: Progress) -> None:
        """There is nobody to report to."""

    def steps(self, total: int, *parts: State, ended: Callable[[], bool] = lambda: False) -> Iterator[int]:
        batches = next((part for part in parts if isinstance(part, Batches)), None)
        epochs = total // batches.per_epoch if batches is not None else 0
        began = self.counter.total
        for step, times in _chosen_steps(total, epochs).items():
            before = self.counter.total
            yield step
            passes = self.counter.total - before
            if batches is not None and times > 1:
                passes *= batches.mean_size / len(batches.rows)
            self.counter.total = before + times * passes
        if batches is not None:
            self.per_length += self.counter.total - began


def _chosen_steps(total: int, epochs: int) -> dict[int, int]:
    """The steps to preview, and for how many steps each of them stands: the first ones, one within an epoch, and the
    last one of an epoch, when there may be a validation."""
    first = min(total, _FIRST_STEPS)
    chosen = dict.fromkeys(range(first), 1)
    ends = min(epochs, total - first)
    if total - first - ends:
        chosen[first] = total - first - ends
    if ends:
        chosen[total - 1] = ends
    return chosen
