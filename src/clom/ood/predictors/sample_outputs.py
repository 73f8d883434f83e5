"""The outputs of all tasks' models for the stored samples, each computed once.

Neither a learned task's model nor its samples ever change. Without this, every lesson would compute all samples with
all models again: with many tasks, a large part of its work.

Tested by tests/ood/predictors/test_sample_outputs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from clom.data.memory import Memory
from clom.nets.passes import counting
from clom.ood.predictors.outputs import TaskOutputs

Pair = tuple[int, int]
"""The task of a model, and the task of the samples that it sees."""


class SampleOutputs:
    """The outputs that are known so far."""

    def __init__(self) -> None:
        self._known: dict[Pair, TaskOutputs] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> SampleOutputs:
        copied = SampleOutputs()
        copied._known = dict(self._known)  # the outputs themselves are never modified
        return copied

    def drop(self, first: int = 0) -> None:
        """Forget what depends on task `first` or on a later one."""
        self._known = {pair: outputs for pair, outputs in self._known.items() if max(pair) < first}

    def of_all_models(
        self,
        n_tasks: int,
        memory: Memory,
        compute: Callable[[Tensor, Sequence[int], bool], list[TaskOutputs]],
        with_features: bool,
    ) -> list[TaskOutputs]:
        """One entry per model, each for all samples, in the order of the memory: task by task.

        `compute(pixels, models, with_features)` computes what is missing. Training passes are counted only for pairs
        with the newest task: a process that resumes a run computes the others again, but they were counted before.
        """
        rows = [(memory.tasks == owner).nonzero().flatten() for owner in range(n_tasks)]
        newest = n_tasks - 1
        for is_new in (False, True):
            with nullcontext() if is_new else counting(None):
                for owner, own in enumerate(rows):
                    models = [model for model in range(n_tasks) if (newest in (model, owner)) == is_new]
                    missing = [model for model in models if not self._is_known(model, owner, with_features)]
                    if missing:  # one task's samples at a time: rounding may depend on which images are together
                        found = compute(memory.pixels[own], missing, with_features)
                        self._known |= {
                            (model, owner): of_model for model, of_model in zip(missing, found, strict=True)
                        }
        return [joined([self._known[model, owner] for owner in range(n_tasks)]) for model in range(n_tasks)]

    def _is_known(self, model: int, owner: int, with_features: bool) -> bool:
        outputs = self._known.get((model, owner))
        return outputs is not None and not (with_features and outputs.features is None)


def joined(parts: Sequence[TaskOutputs]) -> TaskOutputs:
    """The outputs of one model for several groups of images, one group after the other."""
    features = [part.features for part in parts if part.features is not None]
    together = torch.cat(features) if len(features) == len(parts) else None
    return TaskOutputs(torch.cat([part.block for part in parts]), together)
