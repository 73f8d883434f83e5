"""Contrastive learning on cached features: the frozen backbone processes every view once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clom.data.images import to_unit
from clom.data.stream import Stream
from clom.data.views import Augmentation, rotate
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.learners.cached_contrastive import CachedContrastive, FeatureBankContrastive, feature_bank
from clom.learning.learners.contrastive import ContrastiveSettings, RotationContrastive, SgdHeadSettings
from clom.learning.loop import Batch, Plan, generator
from clom.learning.progress import Progress
from clom.methods.clom import Clom, ClomSettings
from clom.nets import AdapterSettings

NET = AdapterSettings(weights="random", width=0.05, hidden=16)
LEARNING = ContrastiveSettings.model_validate({"plan": {"epochs": 2, "batch": 12}, "head": {"views": 3}})


def pixels_of(images: Tensor) -> Tensor:
    return images.flatten(1)


def bank_of(stream: Stream, n_views: int) -> Tensor:
    augmentation = Augmentation(flip=False, colour=False, crop_area=(0.5, 0.9))
    reports: list[tuple[int, int]] = []
    bank = feature_bank(
        pixels_of,
        stream[0].train,
        augmentation,
        4,
        n_views,
        generator(0),
        lambda done, total: reports.append((done, total)),
        batch=7,
    )
    assert reports == [(done + 1, len(reports)) for done in range(len(reports))]
    return bank


def test_a_bank_holds_every_view_in_every_rotation(tiny_stream: Stream) -> None:
    pixels = tiny_stream[0].train.pixels
    bank = bank_of(tiny_stream, 3)
    assert bank.shape == (3, 4, len(pixels), 3 * 8 * 8)
    assert torch.equal(bank[0, 0], to_unit(pixels).flatten(1)), "the first view must be the unaugmented photo"
    as_images = bank.view(*bank.shape[:3], 3, 8, 8)
    for view in range(3):
        for turn in range(4):
            assert torch.equal(as_images[view, turn], rotate(as_images[view, 0], turn))
    assert not torch.allclose(bank[0], bank[1])
    assert not torch.allclose(bank[1], bank[2])


@pytest.mark.parametrize("n_views", [1, 2, 4])
def test_pairs_are_two_views_of_the_same_images(tiny_stream: Stream, n_views: int) -> None:
    task, bank = tiny_stream[0], bank_of(tiny_stream, n_views)
    index = torch.tensor([5, 0, 9])
    randomness = generator(0)
    for _ in range(10):
        features, classes = FeatureBankContrastive(LEARNING, bank).pairs(task, Batch(index, 0.0, 0, index), randomness)
        pair = features.view(2, 4, 3, -1)
        assert torch.equal(classes.view(2, 4, 3)[1, 2], task.train.labels[index] + 2 * task.n_classes)
        for place, row in enumerate(index):
            views = [(bank[:, :, row] == half[:, place]).flatten(1).all(1).nonzero().flatten() for half in pair]
            assert all(len(found) == 1 for found in views), "not exactly one view of this image in all rotations"
            assert n_views == 1 or views[0] != views[1]


def test_the_backbone_processes_every_view_once(tiny_stream: Stream) -> None:
    """Training: each view of each photo. Inference: each rotation of each photo, however many tasks there are."""
    method = Clom(NET, ClomSettings(learning=LEARNING, memory_per_class=2), (1, 8, 8))
    seen: list[int] = []
    reports: list[Progress] = []
    for number in range(2):
        net = method.protection.net
        hook = net.backbone.register_forward_hook(lambda _, images, __: seen.append(len(images[0])))  # type: ignore[union-attr]
        task = tiny_stream[number]
        method.learn(task, TrainingContext(reports.append))
        hook.remove()
        held = len(task.validation)
        kept = min(2 * task.n_classes, held)
        assert sum(seen) == 4 * (3 * len(task.train) + held + kept)
        seen.clear()
    assert {step.phase for step in reports} == {"views", "adapters", "head"}
    hook = method.protection.net.backbone.register_forward_hook(lambda _, images, __: seen.append(len(images[0])))  # type: ignore[union-attr]
    assert len(method.blocks(tiny_stream.tests[0].pixels)) == 2
    assert sum(seen) == 4 * len(tiny_stream.tests[0])
    hook.remove()


def test_features_are_stored_instead_of_photos(tiny_stream: Stream) -> None:
    method = Clom(NET, ClomSettings(learning=LEARNING, memory_per_class=2), (1, 8, 8))
    method.learn(tiny_stream[0])
    n_features = method.protection.net.n_features
    assert method.memory.pixels.shape == (4, 4, n_features)
    assert method.memory_bytes == 4 * 4 * n_features * 4
    pixels = tiny_stream.tests[0].pixels
    torch.testing.assert_close(method.blocks(method.stored_form(pixels))[0], method.blocks(pixels)[0])


def test_cached_features_need_a_solved_head() -> None:
    trained = ClomSettings(learning=ContrastiveSettings(head=SgdHeadSettings(plan=Plan(epochs=1))))
    assert type(Clom(NET, trained, (1, 8, 8)).learner) is RotationContrastive
    assert type(Clom(NET, ClomSettings(), (1, 8, 8)).learner) is CachedContrastive
    with pytest.raises(UserError, match="solved"):
        CachedContrastive(trained.learning)
