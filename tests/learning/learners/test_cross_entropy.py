"""Tasks learned as ordinary classifiers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from clom.data.images import Images, to_unit
from clom.data.stream import Stream
from clom.learning.context import TrainingContext
from clom.learning.learners.cross_entropy import CrossEntropy, CrossEntropySettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.learning.schedule import Plateau, ValidationScores, Validator
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


def test_a_plateau_keeps_the_epoch_that_is_best_with_final_gates(
    tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared is the whole loss, sparsity included, of validation images and gates at s_max. Their labels are
    wrong here, so that an early epoch is the best."""
    images = Images(tiny_stream[0].validation.pixels, 1 - tiny_stream[0].validation.labels)
    scores_of, found = Validator.scores, list[ValidationScores]()

    def recorded(validator: Validator) -> ValidationScores:
        found.append(scores_of(validator))
        return found[-1]

    monkeypatch.setattr(Validator, "scores", recorded)
    torch.manual_seed(0)
    protection = HardAttention(make_net(NET, 8), HardAttentionSettings(sparsity_first=0.2))
    protection.add_task()
    plan = Plan(epochs=30, batch=8, plateau=Plateau(patience=3, drop=1e-9))
    fast = OptimiserSettings(kind="adam", lr=0.02)
    settings = CrossEntropySettings(plan=plan, optimiser=fast)
    head = CrossEntropy(settings).learn(protection, 0, replace(tiny_stream[0], validation=images), 0, TrainingContext())
    best = min(score.loss for score in found)
    assert [score.loss for score in found].index(best) == len(found) - 4 < 26
    with torch.no_grad():
        features, penalty = protection.training_features(to_unit(images.pixels), 0, 1.0)
        loss = F.cross_entropy(head(features), images.labels) + penalty
    assert float(penalty) > 0.05
    assert float(loss) == pytest.approx(best, rel=1e-5)


def test_the_seed_decides(tiny_stream: Stream) -> None:
    heads = [learned(tiny_stream, seed)[1].state_dict()["weight"] for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
