"""Fine-tuning forgets, joint training does not, and the quotas of replay methods."""

from __future__ import annotations

import pytest
import torch

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.loop import Plan
from clom.methods.baselines import FineTune, Joint
from clom.methods.families.replay import MemorySettings
from clom.methods.families.shared import SharedSettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
@pytest.mark.parametrize("kind", [FineTune, Joint])
def test_is_a_method(kind: type[FineTune], net: NetSettings, tiny_stream: Stream) -> None:
    settings = SharedSettings(plan=Plan(epochs=2, batch=16))
    check_method(lambda seed: kind(net, settings, (1, 8, 8), seed), tiny_stream)


def test_fine_tuning_forgets_and_joint_training_does_not(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    accuracy = {}
    for kind in (FineTune, Joint):
        method = kind(ALEXNET, SharedSettings(plan=Plan(epochs=30, batch=16)), (1, 8, 8))
        for task in stream:
            method.learn(task)
        book = Scorebook(stream.tests)
        book.update(method)
        accuracy[kind.name] = evaluate(book, method.calibrations()).preferred.cil
    assert accuracy["finetune"] < 0.45
    assert accuracy["joint"] > 0.9


def test_joint_training_stores_and_counts_all_images(tiny_stream: Stream) -> None:
    method = Joint(ALEXNET, SharedSettings(plan=Plan(epochs=1)), (1, 8, 8))
    for task in tiny_stream[:2]:
        method.learn(task)
    assert method.memory_bytes == sum(task.train.pixels.numel() for task in tiny_stream[:2])
    assert torch.equal(torch.unique(method.memory.tasks), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("size", "per_task", "rounding", "expected"),
    [
        (2000, 10, "ceil", [200, 100, 67, 50, 40, 34, 29, 25, 23, 20]),
        (2000, 10, "floor", [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]),
        (200, 2, "ceil", [100, 50, 34, 25, 20]),
        (2000, 40, "ceil", [50, 25, 17, 13, 10]),
        (2000, 20, "ceil", [100, 50, 34, 25, 20, 17, 15, 13, 12, 10]),
    ],
)
def test_quotas(size: int, per_task: int, rounding: str, expected: list[int]) -> None:
    memory = MemorySettings.model_validate({"size": size, "rounding": rounding})
    assert [memory.quota(per_task * (task + 1)) for task in range(len(expected))] == expected
    assert MemorySettings(size=7, mode="per_class").quota(50) == 7
