"""Combinations of protection and learner: HAT, SupSup and SupSup (OOD in CLOM)."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from clom.data.stream import Stream
from clom.learning.protection.supermask import MaskedHead
from clom.methods.families.masked import MaskedMethod
from clom.methods.registry import method_class
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
NETS: dict[str, NetSettings] = {"alexnet": ALEXNET, "resnet": ResNet18Settings(width=8)}
PLAN = {"epochs": 2, "batch": 16}


def make(name: str, net: NetSettings, seed: int, **learning: Any) -> MaskedMethod:
    maker = method_class(name)
    settings = maker.settings_type.model_validate({"memory_per_class": 3, "learning": {"plan": PLAN, **learning}})
    method = maker(net, settings, (1, 8, 8), seed)
    assert isinstance(method, MaskedMethod)
    return method


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", ["hat", "supsup", "supsup-ood"])
def test_is_a_method(name: str, net: str, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(name, NETS[net], seed), tiny_stream)


def test_supermasked_heads_are_masked_random_rows(tiny_stream: Stream) -> None:
    head_plan = {"plan": {"epochs": 1, "batch": 16}}
    for method in (make("supsup", ALEXNET, 0), make("supsup-ood", ALEXNET, 0, head=head_plan)):
        method.learn(tiny_stream[0])
        method.learn(tiny_stream[1])
        first, second = method.heads
        assert isinstance(first, MaskedHead)
        assert isinstance(second, MaskedHead)
        assert (first.weight == second.weight).all(), "all tasks mask the same random rows"
        assert (first.mask() != second.mask()).any()


@pytest.mark.parametrize(("name", "n_outputs"), [("hat", 2), ("supsup", 2), ("supsup-ood", 8)])
def test_heads_have_an_output_per_class_and_rotation(name: str, n_outputs: int, tiny_stream: Stream) -> None:
    method = make(name, ALEXNET, 0).learn(tiny_stream[0])
    weight = method.heads[0].weight
    assert isinstance(weight, Tensor)
    assert len(weight) == n_outputs
