"""Answering without the task being given: from blocks and one score per task to a task and a class.

Each rule says how much every task wants an image. The most eager task wins, and the answer is its best class. So an
image is answered rightly exactly if its task is found and its TIL answer is right, whatever the rule, hence
`TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)`.

| rule | how much task k wants image x |
|---|---|
| `argmax` | its largest score, `max f^k(x)`: CLOM's own (Eq. 2) |
| `task-then-class` | its OOD score `s^k(x)`, standardised |
| `product` | `max softmax(f^k(x)) * P(k | x)`, P the softmax over the tasks' standardised scores |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.methods.families.base import Blocks


class Standard:
    """`(s^k - mean) / std` with the mean and deviation of each task's score on its own data.

    Scores of separately trained tasks have different scales. The data must be held out: scores are fitted to the
    training images and look better there than they are.
    """

    def __init__(self, means: Tensor, deviations: Tensor) -> None:
        self.means, self.deviations = means, deviations

    @staticmethod
    def fit(own: Sequence[Tensor]) -> Standard:
        """`own[k]`: what task k's score says about its own images."""
        values = [scores.double() for scores in own]
        means = torch.stack([scores.mean() for scores in values])
        return Standard(means, torch.stack([scores.std(correction=0).clamp(min=1e-12) for scores in values]))

    def __call__(self, scores: Sequence[Tensor]) -> Tensor:
        """What all tasks' scores say about the same images: `[images, tasks]`."""
        return (torch.stack(list(scores), 1).double() - self.means) / self.deviations


Rule = Callable[[Blocks, Tensor], Tensor]
"""Blocks and standardised scores `[images, tasks]` to how much each task wants each image, `[images, tasks]`."""


def by_argmax(blocks: Blocks, scores: Tensor) -> Tensor:
    return torch.stack([block.amax(1) for block in blocks], 1)


def by_task(blocks: Blocks, scores: Tensor) -> Tensor:
    return scores


def by_product(blocks: Blocks, scores: Tensor) -> Tensor:
    within = torch.stack([block.double().log_softmax(1).amax(1) for block in blocks], 1)
    return within + scores.log_softmax(1)  # logarithms: products of small probabilities would vanish


RULES: dict[str, Rule] = {"argmax": by_argmax, "task-then-class": by_task, "product": by_product}


@dataclass(frozen=True)
class Outcome:
    """Fractions over the test images of all tasks."""

    task_detection: float
    cil: float


def detected_tasks(rule: Rule, blocks: Blocks, scores: Tensor) -> Tensor:
    return rule(blocks, scores).argmax(1)


def outcome(rule: Rule, blocks: Sequence[Blocks], scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Outcome:
    """How often a rule is right; entry j of everything is about task j's test images."""
    task_right, both_right = [], []
    for task, right in enumerate(labels):
        found = detected_tasks(rule, blocks[task], scores[task]) == task
        task_right.append(found)
        both_right.append(found & (blocks[task][task].argmax(1) == right))
    return Outcome(float(torch.cat(task_right).double().mean()), float(torch.cat(both_right).double().mean()))
