"""The scorebook: scores of every task's model on every test set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from clom.data.images import Images
from clom.errors import UserError
from clom.methods.families.base import Blocks, Method
from clom.nets.data_parallel import split_over_ranks
from clom.ood.predictors.base import TaskOutputs


class Scorebook:
    """Uncalibrated score blocks by (task model, test set). With exact memory, each block is computed only once."""

    def __init__(self, tests: Sequence[Images]) -> None:
        self.tests = tests
        self.n_tasks = 0
        self.passes = 0
        """Number of (task model, test set) pairs computed so far."""
        self._scores: dict[tuple[int, int], Tensor] = {}
        self._features: dict[tuple[int, int], Tensor] = {}

    def update(self, method: Method) -> None:
        """Call after each task: score the test sets of all learned tasks with the models of all learned tasks."""
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
                if method.decides_by_features and (model, test) not in self._features:
                    self.passes += 1
                    self._store(method, model, test)
                elif (model, test) not in self._scores:
                    self.passes += 1
                    self._scores[model, test] = split_over_ranks(partial(method.block, task=model), pixels)

    def _store(self, method: Method, model: int, test: int) -> None:
        """Block and features from one pass."""
        pixels, n_classes = self.tests[test].pixels, method.tasks[model].n_classes
        shape: tuple[int, ...] = ()

        def flat(part: Tensor) -> Tensor:
            nonlocal shape
            outputs = method.outputs(part, model, True)
            features = outputs.need_features().to(outputs.block.dtype)
            shape = tuple(features.shape[1:])
            return torch.cat([outputs.block, features.flatten(1)], 1)

        values = split_over_ranks(flat, pixels)
        self._scores[model, test] = values[:, :n_classes].contiguous()
        self._features[model, test] = values[:, n_classes:].reshape(len(pixels), *shape)

    def blocks(self, test: int) -> Blocks:
        """The blocks of all learned tasks' models on one test set."""
        return [self._scores[model, test] for model in range(self.n_tasks)]

    def outputs(self, test: int) -> list[TaskOutputs]:
        """The outputs of all learned tasks' models on one test set, with features if the method decides by them."""
        return [
            TaskOutputs(self._scores[model, test], self._features.get((model, test))) for model in range(self.n_tasks)
        ]

    def labels(self, test: int) -> Tensor:
        """The labels of one test set, numbered within its task."""
        return self.tests[test].labels

    def all_blocks(self) -> list[Blocks]:
        """`blocks` of every test set."""
        return [self.blocks(test) for test in range(self.n_tasks)]

    def restore(self, blocks: Sequence[Blocks]) -> None:
        """Restore the result of `all_blocks`, `[test][model]`. Raises for scores of other test images."""
        for test, row in enumerate(blocks):
            if test >= len(self.tests) or any(len(block) != len(self.tests[test]) for block in row):
                raise UserError("The stored scores do not belong to these test images. Restart the run.")
        self.n_tasks = len(blocks)
        self._scores = {(model, test): block for test, row in enumerate(blocks) for model, block in enumerate(row)}
