"""Nearest class mean and streaming LDA on frozen features of a small random network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.data.views import rotate
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.heads import DiscriminantHead, discriminants
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families import frozen_features
from clom.methods.families.base import Method
from clom.methods.families.frozen import FrozenMethod
from clom.methods.ncm import Ncm, NcmSettings
from clom.methods.slda import Slda, SldaSettings
from clom.nets import AdapterSettings, AlexNetSettings
from clom.nets.pretrained.efficientnet_lite import VARIANTS, PretrainedSettings
from clom.nets.pretrained.photo_views import PHOTO_VIEWS
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method

NET = AdapterSettings(weights="random", width=0.05, hidden=16)


def ncm(seed: int = 0) -> Ncm:
    return Ncm(NET, NcmSettings(), (1, 8, 8), seed)


def slda(seed: int = 0, shrinkage: float = 1e-2) -> Slda:
    return Slda(NET, SldaSettings(shrinkage=shrinkage), (1, 8, 8), seed)


def clom(seed: int = 0) -> Clom:
    learning = ContrastiveSettings.model_validate({"plan": {"epochs": 2, "batch": 12}, "head": {"views": 1}})
    return Clom(NET, ClomSettings(learning=learning, memory_per_class=2), (1, 8, 8), seed)


def discriminant(seed: int = 0) -> Clom:
    """CLOM with the settings for photos."""
    head = {"kind": "discriminant", "views": 2, "upright": 0.5}
    learning = ContrastiveSettings.model_validate({"plan": {"epochs": 2, "batch": 12}, "head": head})
    return Clom(NET, ClomSettings(learning=learning, memory_per_class=2), (1, 8, 8), seed)


def test_ncm_is_a_method(tiny_stream: Stream) -> None:
    check_method(ncm, tiny_stream)


def test_slda_is_a_method(tiny_stream: Stream) -> None:
    check_method(slda, tiny_stream)


def test_clom_with_adapters_is_a_method(tiny_stream: Stream) -> None:
    check_method(clom, tiny_stream)


def test_clom_with_discriminants_is_a_method(tiny_stream: Stream) -> None:
    check_method(discriminant, tiny_stream)


@pytest.mark.parametrize("make", [ncm, slda, clom, discriminant])
def test_in_distribution_scores_never_change(make: Callable[[], Method], tiny_stream: Stream) -> None:
    method, pixels = make(), tiny_stream.tests[0].pixels
    assert method.belonging(pixels).shape == (len(pixels), 0)
    old = torch.empty(len(pixels), 0)
    for count, task in enumerate(tiny_stream, start=1):
        method.learn(task)
        blocks, belonging = method.blocks_and_belonging(pixels)
        assert belonging.shape == (len(pixels), count)
        assert bool(torch.isfinite(belonging).all())
        assert all(torch.equal(a, b) for a, b in zip(blocks, method.blocks(pixels), strict=True))
        assert torch.equal(belonging[:, : count - 1], old), "a later task changed the scores of old ones"
        assert torch.equal(method.belonging(pixels), belonging)
        old = belonging
    assert method.belonging(pixels[:0]).shape == (0, 3)


def test_in_distribution_score_with_discriminant_heads(tiny_stream: Stream) -> None:
    """Each rotation is compared with the spans of that rotation; the best class is that of the mean over rotations."""
    method = discriminant()
    method.learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    (head,) = method.heads
    assert isinstance(head, DiscriminantHead)
    grams = head.spans @ head.spans.transpose(1, 2)
    torch.testing.assert_close(grams, torch.eye(20).expand(8, 20, 20), atol=1e-5, rtol=0)
    cosines = torch.zeros(len(pixels), 2)
    for turn in range(4):
        features = F.normalize(method.features(rotate(pixels, turn), 0))
        for label in range(2):
            span = head.spans[2 * turn + label]
            cosines[:, label] += (features @ span.T @ span).norm(dim=1) / 4  # the projection's length
    torch.testing.assert_close(method.belonging(pixels)[:, 0], cosines.amax(1), atol=1e-5, rtol=1e-4)


def test_many_classes_do_not_change_old_scores(tiny_stream: Stream) -> None:
    """torch computes distances to more than 25 points differently, with other rounding."""
    method, task = ncm(), tiny_stream[0]
    pixels = tiny_stream.tests[0].pixels
    method.learn(task)
    old = method.blocks(pixels)[0]
    for number in range(14):
        method.learn(replace(task, name=f"again {number}", class_names=(f"a{number}", f"b{number}")))
    assert torch.equal(method.blocks(pixels)[0], old)


def test_ncm_predicts_the_nearest_mean(tiny_stream: Stream) -> None:
    method = ncm()
    for task in tiny_stream:
        method.learn(task)
    task, pixels = tiny_stream[1], tiny_stream.tests[1].pixels
    directions = F.normalize(method.embed(task.train.pixels))
    for label in range(task.n_classes):
        mean = F.normalize(directions[task.train.labels == label].mean(0), dim=0)
        expected = -(F.normalize(method.embed(pixels)) - mean).pow(2).sum(1)
        torch.testing.assert_close(method.block(pixels, 1)[:, label], expected, atol=1e-5, rtol=1e-4)


def test_discriminants_of_two_points() -> None:
    """Means (2, 0) and (0, 2), covariance diag(1, 3), shrunk by a half to diag(1.5, 2.5)."""
    means, covariance = torch.tensor([[2.0, 0], [0, 2]]), torch.diag(torch.tensor([1.0, 3]))
    weight, bias = discriminants(means, covariance, 0.5)
    torch.testing.assert_close(weight, torch.tensor([[4 / 3, 0], [0, 4 / 5]]))
    torch.testing.assert_close(bias, torch.tensor([-4 / 3, -4 / 5]))


def test_slda_task_by_task_equals_lda_on_all_data(tiny_stream: Stream) -> None:
    method = slda(shrinkage=0.1)
    offset, features, labels = 0, [], []
    for task in tiny_stream:
        method.learn(task)
        features.append(method.embed(task.train.pixels))
        labels.append(task.train.labels + offset)
        offset += task.n_classes
    # scikit-learn standardises before shrinkage, so shrinkage itself is not compared.
    joint = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / offset] * offset)
    data, targets = torch.cat(features).double(), torch.cat(labels)
    joint.fit(data.numpy(), targets.numpy())
    covariance = method.scatter / method.n_samples
    torch.testing.assert_close(covariance, torch.from_numpy(joint.covariance_), atol=1e-8, rtol=1e-5)
    weight, bias = discriminants(torch.from_numpy(joint.means_), covariance, 0.1)
    pixels = tiny_stream.tests[0].pixels
    expected = method.embed(pixels) @ weight.float().T + bias.float()
    torch.testing.assert_close(torch.cat(method.blocks(pixels), 1), expected, atol=1e-3, rtol=1e-3)


def test_the_order_of_tasks_does_not_matter_to_slda(tiny_stream: Stream) -> None:
    one, other = slda(), slda()
    for task in tiny_stream:
        one.learn(task)
    for task in reversed(list(tiny_stream)):
        other.learn(task)
    pixels = tiny_stream.tests[0].pixels
    for mine, theirs in zip(one.blocks(pixels), reversed(other.blocks(pixels)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)


def test_one_image_per_class_is_enough(tiny_stream: Stream) -> None:
    task = tiny_stream[0]
    rows = torch.stack([(task.train.labels == label).nonzero()[0, 0] for label in range(task.n_classes)])
    for method in (ncm(), slda()):
        method.learn(type(task)(task.name, task.class_names, task.train[rows], task.validation))
        assert bool(torch.isfinite(method.blocks(task.train.pixels)[0]).all())


class GreyPixels(nn.Module):
    """A stand-in for good features: digits of 8 x 8 pixels are easy to classify by their pixels."""

    n_features = 64

    def __init__(self, settings: PretrainedSettings) -> None:
        super().__init__()

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1).flatten(1)


@pytest.mark.parametrize(("make", "least"), [(ncm, 0.85), (slda, 0.93)])
def test_learns_digits(
    make: Callable[[], FrozenMethod], least: float, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_features, "EfficientNetLite", GreyPixels)
    stream = split(digits, [2] * 5, train_per_class=60, test_per_class=20)
    method = make()
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    assert evaluate(book, method.calibrations()).preferred.cil > least


def test_another_network_is_refused() -> None:
    with pytest.raises(UserError, match=r"ncm needs pretrained features.*efficientnet-lite0"):
        Ncm(AlexNetSettings(), NcmSettings(), (1, 28, 28))


def test_missing_weights_are_explained(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    lite0 = replace(VARIANTS["efficientnet-lite0"], package="a_package_that_is_not_there")
    monkeypatch.setitem(VARIANTS, "efficientnet-lite0", lite0)
    method = Ncm(AdapterSettings(), NcmSettings(), (1, 8, 8))
    with pytest.raises(UserError, match="pip install a_package_that_is_not_there"):
        method.learn(tiny_stream[0])
    assert method.tasks == []


def test_a_model_file_contains_its_network(
    tiny_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are treated as published ones that are not installed when the file is loaded."""
    lite0 = replace(VARIANTS["efficientnet-lite0"], package="a_package_that_is_not_there")
    monkeypatch.setitem(VARIANTS, "efficientnet-lite0", lite0)
    method = Ncm(AdapterSettings(), NcmSettings(), (1, 8, 8))
    other = Ncm(AdapterSettings(weights="random"), NcmSettings(), (1, 8, 8))
    method.backbone.load_state_dict(other.backbone.state_dict())
    method.learn(tiny_stream[0])
    save_model(tmp_path / "model.safetensors", method)
    loaded = load_model(tmp_path / "model.safetensors")
    pixels = tiny_stream.tests[0].pixels
    assert torch.equal(loaded.blocks(pixels)[0], method.blocks(pixels)[0])


def test_the_views_of_photos() -> None:
    """The photo, its horizontal flip, and the middle of both, enlarged to the same size."""
    photo = torch.zeros(1, 3, 20, 20)
    photo[..., :10] = 1.0
    views = {name: view(photo) for name, view in PHOTO_VIEWS.items()}
    assert list(views) == ["plain", "flipped", "middle", "flipped middle"]
    assert torch.equal(views["plain"], photo)
    assert torch.equal(views["flipped"], 1 - photo)
    assert views["middle"].shape == photo.shape
    torch.testing.assert_close(views["flipped middle"], views["middle"].flip(3))
    framed = F.pad(torch.ones(1, 3, 16, 16), (2, 2, 2, 2))
    assert float(PHOTO_VIEWS["middle"](framed).mean()) > float(framed.mean())


def test_every_view_is_learned_from(tiny_stream: Stream) -> None:
    """The mean is that of the photo and its horizontal flip."""
    method = Slda(NET, SldaSettings(views=2), (1, 8, 8))
    task = tiny_stream[0]
    method.learn(task)
    both = torch.stack([method.embed(task.train.pixels), method.embed(task.train.pixels.flip(3))], 1)
    expected = both[task.train.labels == 1].double().mean((0, 1))
    torch.testing.assert_close(method.means[1], expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="There are 4 views"):
        Slda(NET, SldaSettings(views=5), (1, 8, 8))
