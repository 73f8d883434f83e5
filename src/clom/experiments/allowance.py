"""The passes of a run, predicted before it starts, and the length of training that fits an allowance.

A preview learns every task, with a few steps of each phase, and its networks compute only the first images of a batch.
What a step costs is counted as in a run (`clom.nets.passes`) and multiplied by the number of steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from clom.data.stream import Stream, Task
from clom.errors import UserError, shorten
from clom.experiments.catalogue import Budget, read_experiment
from clom.experiments.config import RunConfig
from clom.experiments.defaults import scale_epochs
from clom.learning.context import State, TrainingContext
from clom.learning.loop import Batches
from clom.learning.progress import Progress
from clom.learning.random_states import fork_random_states
from clom.methods.families.base import LearnedTask, Method, seeded
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

    def factor_for(self, passes: float) -> float:
        """The factor with which the run uses so many passes, 0 if none is small enough; 1 if it makes no difference."""
        return max(0.0, (passes - self.fixed) / self.per_length) if self.per_length else 1.0


def unit_of_passes(config: RunConfig, image_size: int) -> float:
    """The multiply-adds of one pass: of one image forward through the experiment's own network."""
    with fork_random_states():
        backbone = Backbone(config.unit_net, image_size).eval()
    return multiply_adds(backbone, torch.zeros(1, 3, image_size, image_size))


def planned_passes(config: RunConfig, stream: Stream, data: Path | None = None) -> PlannedPasses:
    """Predict the passes of a run. `data` is the folder of data sets, for methods that need more than the stream."""
    counter = _PreviewCounter(unit_of_passes(config, stream.image_shape[-1]))
    context = _Preview(counter, data)
    with fork_random_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what the preview learned
        method = config.make_method(stream.image_shape)
        for task in stream:
            _preview(method, task, context)
    return PlannedPasses(counter.total - context.per_length, context.per_length)


@dataclass(frozen=True)
class Allowed:
    """The allowance of a run."""

    passes: float | None
    """None if there is none."""
    strict: bool = False
    """Whether a run that would use more must not start."""

    def check(self, config: RunConfig, stream: Stream, data: Path | None = None) -> None:
        if self.strict and self.passes is not None:
            require_within(self.passes, config, stream, data)


def parse_allowance(text: str | None, experiment: str, budget: Budget) -> Allowed:
    """A number of passes, `experiment` for the one in the experiment's file, or `none`. Without a text, the
    experiment's allowance is recorded but not checked."""
    own = read_experiment(experiment).at(budget).allowance
    if text is None or text == "none":
        return Allowed(own if text is None else None)
    if text == "experiment":
        if own is None:
            raise UserError(
                f"{experiment} has no allowance at budget {budget}: give a number of passes, or add 'allowance' to the "
                "budget in the experiment's file."
            )
        return Allowed(own, strict=True)
    try:
        passes = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        passes = math.nan
    if not 0 < passes < math.inf:
        raise UserError(f"--allowance takes a number of passes, 'experiment' or 'none', not '{shorten(text)}'.")
    return Allowed(passes, strict=True)


def require_within(allowance: float, config: RunConfig, stream: Stream, data: Path | None = None) -> None:
    """Raise UserError if a run would use more passes than allowed."""
    planned = planned_passes(config, stream, data)
    if planned.total <= allowance:
        return
    factor = planned.factor_for(allowance)
    advice = (
        f"With all numbers of epochs multiplied by {math.floor(100 * factor) / 100:.2f}, it would fit."
        if factor >= 0.01
        else "No number of epochs would be small enough."
    )
    raise UserError(
        f"'{config.method}' would use {planned.total:,.0f} training passes on {config.experiment}, but the allowance "
        f"is {allowance:,.0f}. {advice}"
    )


def with_passes(config: RunConfig, stream: Stream, passes: float, data: Path | None = None) -> RunConfig:
    """The same run with all numbers of epochs multiplied by one factor, so that it uses at most `passes`.

    Numbers of epochs are rounded down, but not below 1; UserError if even 1 is too much.
    """
    planned = planned_passes(config, stream, data)
    factor = planned.factor_for(passes)
    scaled = _with_length(config, factor)
    while _has_raised(config, factor) and (planned := planned_passes(scaled, stream, data)).total > passes:
        if max(epochs_of(scaled)) == 1:
            raise UserError(
                f"'{config.method}' cannot learn {config.experiment} with {passes:,.0f} training passes: the shortest "
                f"training takes {planned.total:,.0f}."
            )
        # Some phases cannot be shortened any more, so the others have to be shortened further.
        factor *= min(0.95, planned.factor_for(passes))
        scaled = _with_length(config, factor)
    return scaled


def _with_length(config: RunConfig, factor: float) -> RunConfig:
    settings = scale_epochs(config.settings, factor, _rounded_down)
    before, after = flatten(config.settings), flatten(settings)
    changes = {name: value for name, value in after.items() if before.get(name) != value}
    overrides = dict(sorted({**config.overrides, **changes}.items()))
    return config.model_copy(update={"settings": settings, "overrides": overrides})


def _rounded_down(epochs: float) -> int:
    return math.floor(epochs + 1e-9)


def _has_raised(config: RunConfig, factor: float) -> bool:
    """Whether a number of epochs would be less than 1 without being raised to it."""
    return any(_rounded_down(factor * epochs) < 1 for epochs in epochs_of(config))


def epochs_of(config: RunConfig) -> list[int]:
    """The numbers of epochs of all phases."""
    return [value for name, value in flatten(config.settings).items() if name.endswith("epochs") and value]


def _preview(method: Method, task: Task, context: TrainingContext) -> None:
    """Learn one more task, without the checks of `Method.learn`: what a preview learns is of no use."""
    context.attach(method)
    with seeded(method.seed, "learn", len(method.tasks)), counting(context.passes):
        method.open_task(LearnedTask(task.name, task.class_names))
        method._learn(task, context)


class _PreviewCounter(PassCounter):
    """Counts all images, but computes only the first ones and repeats their outputs.

    A network that is only evaluated computes once for each size of images: most of a preview would be the scores of
    stored samples, part by part, and other outputs serve as well.
    """

    def __init__(self, unit: float) -> None:
        super().__init__(unit)
        self._evaluated = WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Tensor]]()

    def run(self, network: nn.Module, forward: Callable[..., Any], images: Tensor, *args: Any, **options: Any) -> Any:
        plain = not options and all(isinstance(arg, int) or arg == {} for arg in args)
        if network.training or torch.is_grad_enabled() or not plain:
            return super().run(network, forward, images, *args, **options)
        known = self._evaluated.setdefault(network, {})
        kind = (images.shape[1:], images.device, *(arg for arg in args if isinstance(arg, int)))
        if kind not in known or not len(images):
            outputs = super().run(network, forward, images, *args)
            if isinstance(outputs, Tensor) and len(outputs) == len(images) > 0:
                known[kind] = outputs[:_ROWS]
            return outputs
        self.count(network, images, 1.0)
        return known[kind][torch.arange(len(images), device=images.device) % len(known[kind])]

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

    counts_only = True

    def __init__(self, passes: PassCounter, data: Path | None) -> None:
        super().__init__(passes=passes, data=data)
        self.counter, self.per_length = passes, 0.0

    def report_step(self, progress: Progress, loss: Tensor) -> None:
        """The loss does not matter."""

    def report(self, progress: Progress) -> None:
        """There is nobody to report to."""

    def steps(self, total: int, *parts: State, ended: Callable[[], bool] = lambda: False) -> Iterator[int]:
        batches = next((part for part in parts if isinstance(part, Batches)), None)
        began, chosen = self.counter.total, _chosen_steps(total, None if batches is None else batches.per_epoch)
        for step, times in chosen.items():
            before = self.counter.total
            yield step
            passes = self.counter.total - before
            if batches is not None and len(chosen) < total:
                passes *= batches.mean_size / len(batches.rows)
            self.counter.total = before + times * passes
        if batches is not None:
            self.per_length += self.counter.total - began


def _chosen_steps(total: int, per_epoch: int | None) -> dict[int, int]:
    """The steps to preview, and for how many steps each of them stands: the first ones, one within an epoch, and the
    last one of an epoch, when there may be a validation."""
    first = min(total, _FIRST_STEPS)
    chosen = dict.fromkeys(range(first), 1)
    ends = 0 if per_epoch is None else total // per_epoch - first // per_epoch
    if total - first - ends:
        chosen[first] = total - first - ends
    if ends:
        chosen[total - 1] = ends
    return chosen
