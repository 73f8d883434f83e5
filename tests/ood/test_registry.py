"""Registering scores and predictors, and errors for anything else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import clom
from clom.errors import UserError
from clom.ood.predictors.base import TaskOutputs
from clom.ood.registry import PREDICTORS, SCORES, chosen
from clom.ood.scores import NEEDS, Energy, Outputs, Score


def test_every_built_in_score_is_constructible_and_declares_known_needs() -> None:
    titles = [SCORES.get(name).title for name in SCORES.names()]
    assert len(set(titles)) == len(titles) == 11
    for name in SCORES.names():
        kind = SCORES.get(name)
        assert isinstance(kind(), kind)
        assert set(kind.needs) <= NEEDS.keys()


def test_a_decorated_class_is_found_by_name() -> None:
    @clom.register_score("first-class")
    class First(clom.Score):
        def __call__(self, outputs: Outputs) -> Tensor:
            return outputs.block[:, 0]

    assert SCORES.get("first-class") is First
    assert SCORES.entry("first-class").origin == f"module {__name__}"
    assert First()(Outputs(torch.tensor([[1.0, 2.0]]))).tolist() == [1.0]

    @clom.register_predictor("first-task")
    class FirstTask(clom.TaskPredictor):
        def __call__(self, outputs: Sequence[TaskOutputs]) -> Tensor:
            return torch.eye(len(outputs))[:1].expand(len(outputs[0]), -1)

    assert PREDICTORS.get("first-task")().tasks([TaskOutputs(torch.zeros(3, 2))] * 2).tolist() == [0, 0, 0]


class WithArgument(Score):
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, outputs: Outputs) -> Tensor:
        return self.scale * outputs.block.amax(1)


class WrongNeed(Score):
    needs = ("feature",)

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1)


class ForgotTheComma(WrongNeed):
    needs = "features"  # type: ignore[assignment]


class NotComplete(Score):
    def fit(self, own: Outputs) -> NotComplete:
        return self


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (lambda outputs: outputs.block, "is not a score: derive a class from clom.Score"),
        (dict, "dict is not a score"),
        (NotComplete, r"NotComplete is abstract: give it __call__\(outputs\)"),
        (WithArgument, r"WithArgument must be constructible without arguments.*'scale'"),
        (WrongNeed, r"WrongNeed\.needs.*'feature'.*'features'"),
        (ForgotTheComma, r"needs = \('features',\)"),
    ],
)
def test_anything_but_a_score_is_rejected(thing: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SCORES.register("mine")(thing)  # type: ignore[arg-type]
    assert "mine" not in SCORES


def test_a_name_can_be_registered_only_once() -> None:
    with pytest.raises(UserError, match=r"a score 'msp' already \(built in\)"):
        SCORES.register("msp")(Energy)


def test_names_select_and_references_add() -> None:
    assert chosen(SCORES) == SCORES.names()
    assert chosen(SCORES, ["gen", "msp"]) == ["gen", "msp"]
    assert chosen(SCORES, ["msp", "clom.ood.scores:GEN"]) == ["msp", "gen"]
    assert chosen(SCORES, ["clom.ood.scores:GEN"]) == SCORES.names()
