"""The outputs for stored samples are computed once, and are those that computing them again would give."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clom.data.memory import Memory
from clom.data.stream import Stream
from clom.learning.context import TrainingContext
from clom.methods.clom import Clom
from clom.methods.clom_odin import ClomOdin
from clom.methods.families.masked import MaskedMethod
from clom.nets.passes import PassCounter
from clom.ood.predictors.base import TaskOutputs
from clom.ood.predictors.sample_outputs import SampleOutputs, joined
from clom.storage.model_file import load_model, save_model
from clom.testing import tiny_stream
from methods.test_clom import TINY, quick


@pytest.fixture(scope="module")
def stream() -> Stream:
    return tiny_stream()


def clom(stream: Stream, predictor: str | None = "fusion") -> Clom:
    return Clom(TINY, quick(predictor=predictor), stream.image_shape, seed=0)


def assert_as_computed_again(method: MaskedMethod, with_features: bool) -> None:
    samples = method.samples(with_features)
    assert len(samples) == len(method.memory) > 0
    of_tasks = [method.memory.pixels[method.memory.tasks == task] for task in range(len(method.tasks))]
    expected = map(joined, zip(*(method.all_outputs(pixels, with_features) for pixels in of_tasks), strict=True))
    for found, computed in zip(samples.outputs, expected, strict=True):
        assert torch.equal(found.block, computed.block)
        if with_features:
            assert torch.equal(found.need_features(), computed.need_features())


@pytest.mark.parametrize("with_features", [False, True])
def test_outputs_are_those_that_computing_them_again_gives(with_features: bool, stream: Stream) -> None:
    odin_settings = ClomOdin.settings_type.model_validate({"learning": {"plan": {"epochs": 2, "batch": 12}}})
    odin = ClomOdin(TINY, odin_settings, stream.image_shape, seed=0)
    for method in (clom(stream), clom(stream, None)):
        for task in stream[:3]:
            method.learn(task)
            assert_as_computed_again(method, with_features)
        method.recalibrate(2)
        assert_as_computed_again(method, with_features)
        method.forget(1)
        assert_as_computed_again(method, with_features)
    for task in stream[:2]:
        odin.learn(task)
        assert_as_computed_again(odin, with_features)


def test_weights_that_are_loaded_change_the_outputs(stream: Stream) -> None:
    method = clom(stream).learn(stream[0]).learn(stream[1])
    other = Clom(TINY, quick(predictor="fusion"), stream.image_shape, seed=1).learn(stream[0]).learn(stream[1])
    method.load_state_dict(other.state_dict())
    assert_as_computed_again(method, True)


def test_only_pairs_with_the_new_task_are_computed() -> None:
    asked: list[tuple[list[int], tuple[int, ...]]] = []

    def compute(pixels: Tensor, models: Sequence[int], with_features: bool) -> list[TaskOutputs]:
        asked.append((pixels.flatten().tolist(), tuple(models)))
        return [TaskOutputs(100.0 * model + pixels.flatten(1)) for model in models]

    memory, seen = Memory(), SampleOutputs()
    for task, pixels in enumerate(([1.0, 2.0], [3.0], [4.0, 5.0])):
        memory.add(task, torch.tensor(pixels).view(-1, 1, 1, 1), torch.zeros(len(pixels), dtype=torch.int64))
        outputs = seen.of_all_models(task + 1, memory, compute, False)
    third = [([1, 2], (2,)), ([3], (2,)), ([4, 5], (0, 1, 2))]
    assert asked == [([1, 2], (0,)), ([1, 2], (1,)), ([3], (0, 1)), *third]
    assert [found.block.flatten().tolist() for found in outputs] == [
        [1, 2, 3, 4, 5],
        [101, 102, 103, 104, 105],
        [201, 202, 203, 204, 205],
    ]
    asked.clear()
    copied = copy.deepcopy(seen)
    seen.drop(first=2)
    seen.of_all_models(3, memory, compute, False)
    assert asked == third
    copied.of_all_models(3, memory, compute, False)
    assert asked == third, "a copy knows what the original knew"


def test_a_loaded_method_counts_the_same_passes(stream: Stream, tmp_path: Path) -> None:
    """A run that is resumed reports the passes of an uninterrupted one."""
    method = clom(stream).learn(stream[0]).learn(stream[1])
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    passes = []
    for each in (method, loaded):
        counter = PassCounter(1000.0)
        each.learn(stream[2], TrainingContext(passes=counter))
        passes.append(counter.total)
    assert passes[0] == passes[1]
