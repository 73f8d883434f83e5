"""Learning-rate schedules, as a factor of the optimiser's base learning rate: by epoch, and by validation scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import Images, to_unit
from clom.errors import UserError
from clom.settings import NonNegative, Positive, PositiveNumber, Settings, Share


class Schedule(Settings):
    """Linear warm-up, then constant, cosine or steps; `position` is in (fractional) epochs."""

    kind: Literal["constant", "cosine", "steps"] = "cosine"
    warmup: NonNegative = 0.0
    """Epochs of linear warm-up."""
    start: NonNegative = 0.1
    """Factor at the start of the warm-up."""
    horizon: PositiveNumber | None = None
    """Epochs after the warm-up until the cosine reaches zero; by default the end of training."""
    steps: tuple[float, ...] = ()
    """Epochs after which the factor is multiplied by `drop`."""
    drop: PositiveNumber | tuple[PositiveNumber, ...] = 0.1
    """One for all steps, or one for each."""
    every: Literal["step", "epoch"] = "step"
    """Whether the factor changes with every batch or, as in the paper, with every epoch."""

    @model_validator(mode="after")
    def _a_drop_for_each_step(self) -> Self:
        if not isinstance(self.drop, tuple):
            return self
        if len(self.drop) != len(self.steps):
            raise ValueError(f"drop has {len(self.drop)} values for {len(self.steps)} steps: give one, or one for each")
        if list(self.steps) != sorted(self.steps):
            raise ValueError("steps with a drop for each must be in order")
        return self

    def factor(self, position: float, epochs: float) -> float:
        if self.every == "epoch":
            position = math.floor(position)
        if position < self.warmup:
            return self.start + (1 - self.start) * position / self.warmup
        if self.kind == "cosine":
            horizon = self.horizon or max(epochs - self.warmup, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (position - self.warmup) / horizon)))
        if self.kind == "steps":
            done = sum(position >= step for step in self.steps)
            return math.prod(self.drop[:done]) if isinstance(self.drop, tuple) else self.drop**done
        return 1.0


# --- by validation scores ---------------------------------------------------------------------------------------------


class Plateau(Settings):
    """Lower the learning rate when the validation score stops improving. The defaults are HAT's."""

    monitor: Literal["loss", "accuracy"] = "loss"
    patience: Positive = 5
    """Epochs in a row without a new best after which the learning rate is multiplied by `drop`."""
    drop: Share = 1 / 3
    smallest_lr: PositiveNumber = 1e-4
    stop: bool = True
    """Stop training once the rate would fall below `smallest_lr`; otherwise keep that rate."""
    restore_best: bool = True
    """End with the weights of the best epoch instead of those of the last."""


class ValidationScores(NamedTuple):
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Validator:
    """Scores a network on validation images while it is being trained."""

    images: Images
    outputs_of: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Logits of images in [0, 1], and what the training loss adds to the cross-entropy."""
    modules: Sequence[nn.Module]
    """Everything that is trained: scored in evaluation mode, and restored to its best state."""

    @torch.no_grad()
    def scores(self, batch: int = 256) -> ValidationScores:
        training = [module.training for module in self.modules]
        for module in self.modules:
            module.eval()
        loss, right = torch.zeros(2, dtype=torch.float64).unbind()
        for start in range(0, len(self.images), batch):
            part = self.images[slice(start, start + batch)]
            images = to_unit(part.pixels).contiguous(memory_format=torch.channels_last)
            outputs, penalty = self.outputs_of(images)
            loss += (F.cross_entropy(outputs, part.labels, reduction="sum") + len(part) * penalty).cpu()
            right += (outputs.argmax(1) == part.labels).sum().cpu()
        for module, mode in zip(self.modules, training, strict=True):
            module.train(mode)
        return ValidationScores(float(loss) / len(self.images), float(right) / len(self.images))


class PlateauTracker:
    """The state of a `Plateau` rule during one phase of training; part of the phase's snapshots."""

    def __init__(self, settings: Plateau, validator: Validator | None, lr: float) -> None:
        """`lr` is the rate that training begins with."""
        if validator is None:
            raise UserError("This phase of training has no validation score, which plan.plateau needs: leave it out.")
        if not len(validator.images):
            raise UserError(
                "plan.plateau needs validation images, and this task has none. Set data.validation to a share of the "
                "training images, for example 0.1, or leave it out."
            )
        self.settings, self.validator, self.lr = settings, validator, lr
        self.factor = 1.0
        """By what the learning rate has been multiplied so far."""
        self.ended = False
        self._best = math.inf
        self._since_best = 0
        self._best_states: list[dict[str, Tensor]] = []

    def after_epoch(self) -> None:
        scores = self.validator.scores()
        value = scores.loss if self.settings.monitor == "loss" else -scores.accuracy
        if value < self._best:
            self._best, self._since_best = value, 0
            if self.settings.restore_best:
                self._best_states = [_copied(module.state_dict()) for module in self.validator.modules]
            return
        self._since_best += 1
        if self._since_best >= self.settings.patience:
            self._since_best = 0
            self._lower()

    def _lower(self) -> None:
        smallest = self.settings.smallest_lr / self.lr
        self.factor *= self.settings.drop
        if self.factor < smallest:
            self.ended = self.settings.stop
            self.factor = smallest

    def restore_best(self) -> None:
        """Restore the weights of the best epoch, with `settings.restore_best`."""
        if self._best_states:
            for module, state in zip(self.validator.modules, self._best_states, strict=True):
                module.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "ended": self.ended,
            "best": self._best,
            "since_best": self._since_best,
            "best_states": self._best_states,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self.ended = state["factor"], state["ended"]
        self._best, self._since_best = state["best"], state["since_best"]
        self._best_states = state["best_states"]


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
