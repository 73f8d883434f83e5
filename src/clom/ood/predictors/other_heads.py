"""A linear head per task with one extra output, "another task", fitted to the stored samples.

Tested by tests/ood/predictors/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clom.data.views import rotation_labels
from clom.learning.heads import HeadSettings, solve_head
from clom.ood.predictors.base import StoredSamples, TaskOutputs


class OtherHeads:
    """The heads of all tasks: outputs for `rotations` rotations of every own class, and one for all other tasks.

    After the first task there are no samples of other tasks, and no heads.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], rotations: int) -> None:
        self.weights, self.biases, self.rotations = list(weights), list(biases), rotations

    @staticmethod
    def fit(samples: StoredSamples, rotations: int, l2: float, iterations: int) -> OtherHeads:
        weights, biases = [], []
        if len(samples.outputs) > 1:
            for task, outputs in enumerate(samples.outputs):
                features, labels, n_outputs = _examples(samples, task, outputs, rotations)
                head = solve_head(features, labels, n_outputs, HeadSettings(l2=l2, iterations=iterations))
                weights.append(head.weight.detach())
                biases.append(head.bias.detach())
        return OtherHeads(weights, biases, rotations)

    def own_log_probability(self, outputs: Sequence[TaskOutputs], temperature: float = 1.0) -> Tensor:
        """The log of the largest softmax probability of an own class of the unrotated image, `[images, tasks]`."""
        if not self.weights:
            return _zeros(outputs)
        return torch.stack([self._probabilities(task, temperature)[:, :-1].amax(1) for task in self._pairs(outputs)], 1)

    def log_odds(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        """`log P(own) / P(other)`, averaged over the rotations, `[images, tasks]`."""
        if not self.weights:
            return _zeros(outputs)
        found = []
        for features, weight, bias in self._pairs(outputs):
            logits = features[:, : self.rotations] @ weight.T + bias  # [images, rotations, outputs]
            found.append((logits[..., :-1].logsumexp(2) - logits[..., -1]).mean(1))
        return torch.stack(found, 1)

    def _probabilities(self, task: tuple[Tensor, Tensor, Tensor], temperature: float) -> Tensor:
        features, weight, bias = task
        return ((features[:, 0] @ weight.T + bias) / temperature).log_softmax(1)

    def _pairs(self, outputs: Sequence[TaskOutputs]) -> list[tuple[Tensor, Tensor, Tensor]]:
        heads = zip(outputs, self.weights, self.biases, strict=True)
        return [(task.need_features(), weight.double(), bias.double()) for task, weight, bias in heads]


def _examples(samples: StoredSamples, task: int, outputs: TaskOutputs, rotations: int) -> tuple[Tensor, Tensor, int]:
    """Features, labels and number of outputs of a task's head; all rotations of other tasks' samples are "other"."""
    n_classes = outputs.block.shape[1]
    features = outputs.need_features()[:, :rotations].transpose(0, 1).flatten(0, 1)  # rotation by rotation
    labels = rotation_labels(samples.labels, n_classes, rotations)
    other = (samples.tasks != task).repeat(rotations)
    return features.float(), torch.where(other, rotations * n_classes, labels), rotations * n_classes + 1


def _zeros(outputs: Sequence[TaskOutputs]) -> Tensor:
    return torch.zeros(len(outputs[0]), len(outputs), dtype=torch.float64)
