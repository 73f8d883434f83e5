"""The classes that compete for an answer. Merged classes compete as one: their probabilities are added.

Tested by tests/photos/changes/test_merge.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clom.methods.families.task_record import LearnedTask

Candidate = tuple[str, int, float]
"""Class, number of its task, and probability."""


class Competitors:
    """The classes of some tasks, in the order of their score columns."""

    def __init__(self, tasks: Sequence[LearnedTask], numbers: Sequence[int]) -> None:
        columns = [(name, number) for number in numbers for name in tasks[number].answer_names]
        self._tasks = torch.tensor([number for _, number in columns])
        self.names = tuple(dict.fromkeys(name for name, _ in columns))
        self._place = torch.tensor([self.names.index(name) for name, _ in columns])

    def most_likely(self, chances: Tensor, top: int) -> list[list[Candidate]]:
        """For each row of `[images, columns]`, the most likely classes, best first; of several tasks, the likeliest."""
        added = chances.new_zeros(len(chances), len(self.names)).index_add_(1, self._place, chances)
        best = added.topk(min(max(1, top), len(self.names)), dim=1)
        return [
            [(self.names[place], self._task(row, place), chance) for place, chance in zip(places, sure, strict=True)]
            for row, places, sure in zip(chances, best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _task(self, chances: Tensor, place: int) -> int:
        own = self._place == place
        return int(self._tasks[own][chances[own].argmax()])
