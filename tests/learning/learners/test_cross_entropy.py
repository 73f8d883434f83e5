"""Tasks learned as ordinary classifiers."""

from __future__ import annotations

import torch

from clom.data.images import to_unit
from clom.data.stream import Stream
from clom.learning.context import TrainingContext
from clom.learning.learners.cross_entropy import CrossEntropy, CrossEntropySettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.nets import AlexNetSettings, make_net

NET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
SETTINGS = CrossEntropySettings(plan=Plan(epochs=30, batch=8), optimiser=OptimiserSettings(kind="adam", lr=0.005))


def learned(stream: Stream, seed: int = 0) -> tuple[HardAttention, torch.nn.Module]:
    torch.manual_seed(0)
    protection = HardAttention(make_net(NET, 8), HardAttentionSettings(sparsity_first=0.0))
    protection.add_task()
    return protection, CrossEntropy(SETTINGS).learn(protection, 0, stream[0], seed, TrainingContext())


def test_features_and_head_learn_the_classes(tiny_stream: Stream) -> None:
    protection, head = learned(tiny_stream)
    test = tiny_stream.tests[0]
    with torch.no_grad():
        scores = head(protection.features(to_unit(test.pixels), 0))
    assert scores.shape == (len(test.labels), 2)
    assert float((scores.argmax(1) == test.labels).float().mean()) > 0.9
    assert not protection.training
    assert CrossEntropy.rotations == 1


def test_the_seed_decides(tiny_stream: Stream) -> None:
    heads = [learned(tiny_stream, seed)[1].state_dict()["weight"] for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
