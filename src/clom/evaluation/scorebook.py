"""All scores of a run: which task's model says what about which test set."""

from __future__ import annotations

from collections.abc import Sequence
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

    def all_blocks(self) -> list[Blocks]:
        """`blocks` of every test set."""
        return [self.blocks(test) for test in range(self.n_tasks)]

    def restore(self, blocks: Sequence[Blocks]) -> None:
        """Take back what `all_blocks` gave: `[test][model]`. Scores of other test images are refused."""
        for test, row in enumerate(blocks):
            if test >= len(self.tests) or any(len(block) != len(self.tests[test]) for block in row):
                raise UserError("The stored scores do not belong to these test images. Start the run anew.")
        self.n_tasks = len(blocks)
        self._scores = {(model, test): block for test, row in enumerate(blocks) for model, block in enumerate(row)}
