"""The protection interface, as used by learners and methods.

Tested by tests/learning/protection/test_hard_attention.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self, cast

import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.nets.gates import Gates
from clom.nets.layers import Net
from clom.nets.packed import packed


class Protection(nn.Module, ABC):
    """A network shared by all tasks, and the rule by which a new task uses it without changing old ones."""

    net: Net
    exact: bool = True
    """Whether the outputs of old tasks stay bit-identical."""

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    @abstractmethod
    def n_tasks(self) -> int: ...

    @abstractmethod
    def add_task(self) -> None:
        """Add the parameters of one more task; old tasks are unaffected."""

    def sizes_for_next_task(self) -> dict[str, int]:
        """Gate group -> the units that it should have before the next task is added; empty if it never grows."""
        return {}

    def grow(self, sizes: Mapping[str, int], seed: int) -> None:
        """Append units, closed for all tasks so far, until every gate group has its size; nothing if it is empty."""
        if sizes:
            raise ValueError("this protection has no gate groups that could grow")

    def n_features(self, task: int) -> int:
        """The number of features that the task's head reads: growth does not widen those of earlier tasks."""
        return self.net.n_features

    @abstractmethod
    def features(self, images: Tensor, task: int) -> Tensor:
        """`h(x, k)` at inference."""

    def compact(self, task: int) -> tuple[Net, Tensor] | None:
        """A finished task's sub-network as a separate dense network, called with `(images, 0, {})`, and the indices of
        the features that it computes. None if this protection has no compact form."""
        return None

    def inference_features(self, task: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """A function that computes a finished task's features, without those that are always zero, and the indices of
        the features that it computes."""
        compacted = self.compact(task)
        if compacted is None:
            # Not a lambda: a deep copy of the method must use its own copy of the network.
            return partial(self.features, task=task), torch.arange(self.n_features(task), device=self.device)
        small, kept = packed(compacted[0]), compacted[1]
        return lambda images: cast(Tensor, small(images, 0, {})), kept

    @abstractmethod
    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        """`h(x, k)` during training, at `position` in [0, 1) of an annealing sweep, and the penalty L_r."""

    @abstractmethod
    def weights(self, task: int) -> list[nn.Parameter]:
        """The network's parameters that training on this task may change."""

    @abstractmethod
    def mask_parameters(self, task: int) -> list[nn.Parameter]:
        """The parameters of the task's mask."""

    def projected(self, features: Tensor, task: int, position: float) -> Tensor:
        """The shared layer of the projection g during training, `a * relu(W h + b)`."""
        raise UserError("learning.projection_layer: shared needs a method with hard attention.")

    def n_parameters(self) -> int:
        """Parameters needed at inference."""
        return sum(parameter.numel() for parameter in self.parameters())

    def make_head(self, task: int, n_outputs: int) -> nn.Module:
        """An untrained head for the task's features."""
        return nn.Linear(self.net.n_features, n_outputs)

    def gates(self, task: int) -> Gates:
        """Gate group -> gate of each unit outside training; empty without gates."""
        return {}

    def capacity(self) -> dict[str, list[float]]:
        """Gate group -> fraction of its units in use after each task, of those that existed then; empty if units are
        never used up."""
        return {}

    def unit_counts(self) -> dict[str, list[int]]:
        """Gate group -> the number of its units when each task was learned; empty without gates."""
        return {}

    def training_values(self) -> dict[str, float]:
        """What can be followed during training, by name; empty between tasks."""
        return {}

    def closed_groups(self, task: int) -> list[str]:
        """Gate groups in which the task opened no unit."""
        return []

    def sub_network(self, task: int) -> dict[str, Tensor]:
        """All values that determine a finished task's features, under names that do not depend on the task's number."""
        return dict(self.state_dict())

    def forget(self, task: int, untouched: Self) -> None:
        """Remove a task, and reset the weights that no other task uses to those of the `untouched` protection."""
        raise UserError("This model cannot forget a task: its protection does not support it.")

    def begin(self, task: int) -> None:
        """Called once before training on a task."""

    def before_step(self) -> None:
        """Called before every optimiser step."""

    def after_step(self) -> None:
        """Called after every optimiser step: undo its effect on old tasks."""

    def finish(self, task: int, head: nn.Module) -> None:
        """Called once after a task and its head have been trained: drop what only training needed."""
