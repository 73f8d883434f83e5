"""Outlier exposure: views and features of stored samples, log-odds against another task, and what it achieves."""

from __future__ import annotations

import statistics

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from clom.data.images import DataSet, Images
from clom.data.stream import Stream, split
from clom.data.views import Augmentation
from clom.errors import UserError
from clom.evaluation.metrics import auc
from clom.learning.heads import HeadSettings, relative_to_last
from clom.learning.learners.cached_contrastive import CachedContrastive
from clom.learning.learners.contrastive import ContrastiveSettings, SgdHeadSettings
from clom.learning.learners.outliers import outlier_features, outlier_views
from clom.learning.loop import Plan, generator
from clom.methods.clom import ClomSettings
from clom.methods.clom_plus import ClomPlus
from clom.nets import AlexNetSettings

PLAIN = Augmentation(flip=False, colour=False, crop=False)
NET = AlexNetSettings(
    channels=(32, 32, 32), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=64, dropout=(0.0, 0.0)
)


def three_outliers() -> Images:
    """Three images of three classes; image k is k + 1 everywhere but in its first pixel, which shows its rotation."""
    pixels = torch.stack([torch.full((1, 8, 8), k + 1, dtype=torch.uint8) for k in range(3)])
    pixels[:, :, 0, 0] = 255
    return Images(pixels, torch.arange(3))


def test_views_of_outliers_are_classes_of_their_own() -> None:
    views, classes = outlier_views(three_outliers(), 5, PLAIN, generator(0), 4, "paper")
    assert views.shape == (40, 3, 8, 8)  # two views in four rotations
    image = (views[:, 0, 4, 4] * 255).round().long() - 1
    corners = views[:, 0][:, [0, 7, 7, 0], [0, 0, 7, 7]]  # where the first pixel is after 0, 1, 2, 3 quarter turns
    assert classes.tolist() == (image + 3 * corners.argmax(1)).tolist()
    assert len(set(image.tolist())) > 1


def test_the_head_sees_every_outlier_in_all_rotations() -> None:
    found = outlier_features(lambda views: views[:, 0, 4, 4, None] * 255, three_outliers(), PLAIN, 4, generator(0))
    assert found.round().long().flatten().bincount().tolist() == [0, 16, 16, 16]  # four views in four rotations


def test_outputs_relative_to_the_last_one() -> None:
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]]))
        head.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    relative = relative_to_last(head)
    assert relative.weight.tolist() == [[0.5, 3.0], [2.5, 5.0]]
    assert relative.bias.tolist() == [-2.0, -1.0]


def settings(outliers: float, **changes: object) -> ClomSettings:
    learning = {
        "outliers": outliers,
        "augmentation": {"flip": False, "crop_area": (0.5, 1.0)},
        "plan": Plan(epochs=25, batch=16),
        "optimiser": {"kind": "adam", "lr": 0.002},
        "gates_optimiser": {"kind": "adam", "lr": 0.05},
        "head": {"views": 2, "iterations": 50},
    }
    attention = {"sparsity_first": 0.3, "sparsity_rest": 0.2}  # more closes whole layers of so small a network
    return ClomSettings.model_validate({"attention": attention, "learning": {**learning, **changes}})


@pytest.fixture(scope="module")
def digits_stream(digits: DataSet) -> Stream:
    return split(digits, classes_per_task=2, validation=0.25, train_per_class=80)


SEEDS = range(2)


@pytest.fixture(scope="module")
def learned(digits_stream: Stream) -> dict[float, list[ClomPlus]]:
    """By the share of outliers, a model of two tasks for each seed."""
    models: dict[float, list[ClomPlus]] = {0.0: [], 0.25: []}
    for outliers, found in models.items():
        for seed in SEEDS:
            found.append(ClomPlus(NET, settings(outliers), digits_stream.image_shape, seed=seed))
            for task in digits_stream[:2]:
                found[-1].learn(task)
    return models


def separation(model: ClomPlus, own: Tensor, other: Tensor) -> float:
    """AUC of the largest score of the second task: its own images against others."""
    return auc(model.block(own, 1).amax(1), model.block(other, 1).amax(1))


def test_a_task_tells_its_images_from_those_of_earlier_tasks_better(
    learned: dict[float, list[ClomPlus]], digits_stream: Stream
) -> None:
    own, other = digits_stream.tests[1].pixels, digits_stream.tests[0].pixels
    without, exposed = ([separation(model, own, other) for model in learned[outliers]] for outliers in (0.0, 0.25))
    assert statistics.fmean(exposed) > statistics.fmean(without) + 0.02
    assert statistics.fmean(exposed) > 0.96


def test_a_task_tells_its_images_from_the_stored_ones_it_was_exposed_to(
    learned: dict[float, list[ClomPlus]], digits_stream: Stream
) -> None:
    own = digits_stream[1].train.pixels
    for plain, exposed in zip(learned[0.0], learned[0.25], strict=True):
        stored = exposed.memory.pixels[exposed.memory.tasks == 0]
        assert separation(exposed, own, stored) > 0.98
        assert separation(exposed, own, stored) > separation(plain, own, stored) + 0.01


def test_the_first_task_has_no_outliers(learned: dict[float, list[ClomPlus]], digits_stream: Stream) -> None:
    blocks: list[Tensor] = [models[0].block(digits_stream.tests[0].pixels, 0) for models in learned.values()]
    assert torch.equal(*blocks)


def test_outliers_need_a_logistic_head_and_a_trained_network() -> None:
    for head in (SgdHeadSettings(), HeadSettings(kind="discriminant")):
        with pytest.raises(ValidationError, match="outliers need a head"):
            ContrastiveSettings(outliers=0.25, head=head)
    with pytest.raises(UserError, match=r"learning\.outliers"):
        CachedContrastive(ContrastiveSettings(outliers=0.25))
