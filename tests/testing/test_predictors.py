"""`check_predictor`: ours pass, and every broken one is named."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Self

import pytest
import torch
from torch import Tensor

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor
from clom.ood.predictors.statistics import TaskStatistics
from clom.ood.registry import PREDICTORS
from clom.testing import check_predictor


@pytest.mark.parametrize("name", PREDICTORS.names())
def test_every_predictor(name: str) -> None:
    check_predictor(PREDICTORS.get(name))


class ByScore(TaskPredictor):
    needs: ClassVar[Collection[str]] = ("score",)

    def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
        return self.changed(torch.stack([task.need_score() for task in outputs], 1))

    def changed(self, scores: Tensor) -> Tensor:
        return scores


class LeastLikely(ByScore):
    def changed(self, scores: Tensor) -> Tensor:
        return -scores


class TaskNumber(ByScore):
    def changed(self, scores: Tensor) -> Tensor:
        return scores.argmax(1)


class ByBatch(ByScore):
    def changed(self, scores: Tensor) -> Tensor:
        return scores - scores.mean(0)


class Impossible(ByScore):
    def changed(self, scores: Tensor) -> Tensor:
        return scores.log()


class Dice(ByScore):
    def changed(self, scores: Tensor) -> Tensor:
        return torch.rand(scores.shape)


class Undeclared(ByScore):
    needs = ()


class Unsaved(ByScore):
    """Learns from samples, but not into `learned`."""

    needs = ("score", "samples")
    shift = 0.0

    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        self.shift = 0.0 if samples is None else float(len(samples))
        return self

    def changed(self, scores: Tensor) -> Tensor:
        return scores + self.shift


class FitsAway(ByScore):
    def fit(self, tasks: Sequence[TaskStatistics], samples: StoredSamples | None) -> Self:
        return type(self)()


def test_the_specimen_is_healthy() -> None:
    check_predictor(ByScore)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (LeastLikely, "found for 0%.*highest score"),
        (TaskNumber, "for 30 images and 3 tasks"),
        (ByBatch, "predicted together"),
        (Impossible, "NaN or infinity"),
        (Dice, "second call differs"),
        (Undeclared, "without declaring it"),
        (Unsaved, "same `learned` differs"),
        (FitsAway, "fit returns the predictor itself"),
    ],
)
def test_a_broken_predictor_is_named(kind: type[TaskPredictor], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_predictor(kind)
