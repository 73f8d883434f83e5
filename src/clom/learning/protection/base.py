"""What every protection offers to learners and methods.

Tested by tests/learning/protection/test_hard_attention.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.nets.gates import Gates
from clom.nets.layers import Net


class Protection(nn.Module, ABC):
    """A network shared by tasks, and the rule that lets a new task use it without changing the old ones."""

    net: Net
    exact: bool = True
    """Whether old tasks stay bit-identical for ever."""

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    @abstractmethod
    def n_tasks(self) -> int: ...

    @abstractmethod
    def add_task(self) -> None:
        """Make room for one more task; old tasks do not notice."""

    @abstractmethod
    def features(self, images: Tensor, task: int) -> Tensor:
        """`h(x, k)` as it is used for ever after the task was learned."""

    def compact(self, task: int) -> tuple[Net, Tensor] | None:
        """A finished task's sub-network as a dense network of its own, called with `(images, 0, {})`, and which of all
        features it gives; None if a task has none."""
        return None

    def inference_features(self, task: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """A finished task's features without those that are always zero, and which of all features they are."""
        found = self.compact(task)
        if found is None:
            # Not a lambda: a copy of the method must ask its own copy of the network.
            return partial(self.features, task=task), torch.arange(self.net.n_features, device=self.device)
        small, kept = found
        return lambda images: cast(Tensor, small(images, 0, {})), kept

    @abstractmethod
    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        """`h(x, k)` while the task is learned, `position` in [0, 1) through an annealing sweep, and the penalty L_r."""

    @abstractmethod
    def weights(self, task: int) -> list[nn.Parameter]:
        """The parameters of the network that learning this task may move."""

    @abstractmethod
    def mask_parameters(self, task: int) -> list[nn.Parameter]:
        """The parameters of the task's mask."""

    def make_head(self, task: int, n_outputs: int) -> nn.Module:
        """An untrained head for the task's features."""
        return nn.Linear(self.net.n_features, n_outputs)

    def gates(self, task: int) -> Gates:
        """Gate group -> gate of each unit as it is used outside training; empty where units have none."""
        return {}

    def capacity(self) -> dict[str, list[float]]:
        """Gate group -> fraction of its units in use after each task; empty where units are never used up."""
        return {}

    def closed_groups(self, task: int) -> list[str]:
        """Gate groups of which the task opened no unit at all."""
        return []

    def sub_network(self, task: int) -> dict[str, Tensor]:
        """All numbers that a finished task's features are computed from, by names that do not tell its position."""
        return dict(self.state_dict())

    def forget(self, task: int, untouched: Net) -> None:
        """Drop a task, and put weights that no other task uses back to those of the `untouched` network."""
        raise UserError("What protects the tasks of this model cannot give one up.")

    def begin(self, task: int) -> None:
        """Called once before a task is learned."""

    def before_step(self) -> None:
        """Called before every step of the optimiser."""

    def after_step(self) -> None:
        """Called after every step of the optimiser: undo whatever it did to the old tasks."""

    def finish(self, task: int, head: nn.Module) -> None:
        """Called once after a task and its head were learned: whatever only learning needed can go."""
