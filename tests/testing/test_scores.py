"""`check_score`: ours pass, and every broken one is named."""

from __future__ import annotations

from typing import Self

import pytest
import torch
from torch import Tensor

from clom.ood.registry import SCORES
from clom.ood.scores import Mahalanobis, MaxLogit, Outputs, Score
from clom.testing import check_score


@pytest.mark.parametrize("name", SCORES.names())
def test_every_score(name: str) -> None:
    check_score(SCORES.get(name))


# --- broken scores ---------------------------------------------------------------------------------------------------


class UpsideDown(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return -super().__call__(outputs)


class WholeBlock(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block


class Rounded(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1).long()


class Infinite(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1) / 0


class Relative(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1) - outputs.block.mean()


class Random(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1) + torch.rand(len(outputs.block))


class RandomFit(MaxLogit):
    def fit(self, own: Outputs) -> Self:
        self.noise = torch.rand(())
        return self

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1) + self.noise


class Undeclared(Mahalanobis):
    needs = ("features",)  # type: ignore[assignment]


class Peeking(MaxLogit):
    needs = ("labels",)

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block[torch.arange(len(outputs.block)), outputs.need_labels()]


class FitReturnsNothing(MaxLogit):
    def fit(self, own: Outputs) -> Self:
        return None  # type: ignore[return-value]


class InPlace(MaxLogit):
    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.sub_(1.0).amax(1)


class Incomplete(Score):
    needs = ("feature",)

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (UpsideDown, r"Only 0% of the pairs.*The contract: high = belongs"),
        (WholeBlock, r"shape \(40, 3\) for 40 images.*one number per image"),
        (Rounded, "int64.*floating point"),
        (Infinite, "NaN or infinity.*finite"),
        (Relative, "depends on which images.*by itself"),
        (Random, "Two calls.*function of its inputs"),
        (RandomFit, "fitted to the same data, differs"),
        (Undeclared, r"fit failed: .*labelled images.*needs = \('labels',\)"),
        (Peeking, "the call failed: .*labelled images"),
        (FitReturnsNothing, "fit returned None.*the score itself"),
        (InPlace, "Two calls|changed in place"),
        (Incomplete, "'feature'.*'features'"),
    ],
)
def test_a_broken_score_is_named(kind: type[Score], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_score(kind)
