"""All scores of a run: which task's model says what about which test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from clom.data.images import Images
from clom.errors import UserError
from clom.methods.families.base import Blocks, Method
from clom.nets.data_parallel import split_over_ranks


class Scorebook:
    """Raw blocks by (task model, test set). Entries of methods with exact memory are computed once in a run's life."""

    def __init__(self, tests: Sequence[Images]) -> None:
        self.tests = tests
        self.n_tasks = 0
        self.passes = 0
        """How many (task model, test set) pairs were computed so far."""
        self._scores: dict[tuple[int, int], Tensor] = {}

    def update(self, method: Method) -> None:
        """After a task: score the test sets of all learned tasks with all learned tasks' models."""
        self.n_tasks = len(method.tasks)
        for test in range(self.n_tasks):
            pixels = self.tests[test].pixels
            if not method.exact_memory:
                self.passes += self.n_tasks
                widths = [task.n_classes for task in method.tasks]
                blocks = torch.split(
                    split_over_ranks(lambda part: torch.cat(method.blocks(part), 1), pixels), widths, 1
                )
                self._scores.update({(model, test): block for model, block in enumerate(blocks)})
                continue
            for model in range(self.n_tasks):
                if (model, test) not in self._scores:
                    self.passes += 1
                    self._scores[model, test] = split_over_ranks(partial(method.block, task=model), pixels)

    def blocks(self, test: int) -> Blocks:
        """What all learned tasks' models say about one test set, side by side."""
        return [self._scores[model, test] for model in range(self.n_tasks)]

    def labels(self, test: int) -> Tensor:
        """The right classes of one test set, counted within its task."""
        return self.tests[test].labels

    def state(self) -> dict[str, Tensor]:
        return {f"{model}.{test}": block.contiguous() for (model, test), block in self._scores.items()}

    def restore(self, state: Mapping[str, Tensor], n_tasks: int) -> None:
        """Take back what `state` gave after `n_tasks` tasks; what does not fit the test sets is an error, not a wrong
        number. Scores of later tasks are left: their models are not there yet.
        """
        for name, block in state.items():
            model, _, test = name.partition(".")
            if not (model.isdecimal() and test.isdecimal() and int(test) < len(self.tests)) or (
                block.shape[:1] != self.tests[int(test)].labels.shape or block.ndim != 2
            ):
                raise _foreign()
            if int(model) < n_tasks and int(test) < n_tasks:
                self._scores[int(model), int(test)] = block
        if len(self._scores) != n_tasks**2:
            raise _foreign()
        self.n_tasks = n_tasks


def _foreign() -> UserError:
    return UserError("The stored scores do not belong to these test images. Start the run anew.")
