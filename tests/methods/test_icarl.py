"""iCaRL: losses, class means and accuracy; herding and nearest means are tested in learning/."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.nearest_mean import mean_directions
from clom.methods.families.shared import SharedNetwork
from clom.methods.icarl import Icarl, IcarlSettings, binary_loss, flipped
from clom.methods.lwf_r import LwfR, LwfRSettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
SHARED: dict[str, Any] = {"plan": {"epochs": 2, "batch": 16}, "memory": {"size": 12}}


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: Any) -> Icarl:
    return Icarl(net, IcarlSettings.model_validate({**SHARED, **settings}), (1, 8, 8), seed)


def accuracies(method: Icarl, stream: Stream) -> tuple[float, float]:
    book = Scorebook(stream.tests[: len(method.tasks)])
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    return evaluation.til, evaluation.preferred.cil


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
@pytest.mark.parametrize("variant", ["liu", "rebuffi"])
def test_is_a_method(variant: str, net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed, variant=variant), tiny_stream)


def test_loss_of_rebuffi() -> None:
    outputs, old = torch.tensor([[0.0, 1, -1]]), torch.tensor([[2.0, 0]])
    assert float(binary_loss(outputs, old, torch.tensor([2]))) == pytest.approx(0.939890, abs=1e-6)
    for old_class in (0, 1):
        assert float(binary_loss(outputs, old, torch.tensor([old_class]))) == pytest.approx(0.606557, abs=1e-6)
    # Without old classes all targets are labels.
    assert float(binary_loss(outputs, None, torch.tensor([0]))) == pytest.approx(0.773224, abs=1e-6)


def test_units_preserve_the_scale_of_the_original_loss() -> None:
    outputs, old, labels = torch.randn(5, 3), torch.randn(5, 2), torch.tensor([0, 1, 2, 2, 0])
    mean = binary_loss(outputs, old, labels)
    torch.testing.assert_close(binary_loss(outputs, old, labels, 100), mean * 3 / 100)
    torch.testing.assert_close(binary_loss(outputs, old, labels, 2), mean)


def test_flipping_swaps_left_and_right_but_not_colours() -> None:
    row = torch.tensor([[0, 1, 2], [3, 4, 5]])  # height 1, width 2, colours last
    pixels = row[None, None].permute(0, 3, 1, 2)
    assert flipped(pixels).permute(0, 2, 3, 1)[0, 0].tolist() == [[3, 4, 5], [0, 1, 2]]


def test_means_include_flipped_exemplars(tiny_stream: Stream) -> None:
    plain = make().learn(tiny_stream[0])
    with_flips = make(flip_means=True).learn(tiny_stream[0])
    pixels, labels = plain.exemplars()
    torch.testing.assert_close(plain.means, mean_directions(plain.embed(pixels), labels, 2))
    halves = [torch.nn.functional.normalize(plain.embed(images)) for images in (pixels, pixels.flip(3))]
    for label in (0, 1):
        both = (halves[0][labels == label].mean(0) + halves[1][labels == label].mean(0)) / 2
        torch.testing.assert_close(with_flips.means[label], torch.nn.functional.normalize(both, dim=0))
    assert not torch.allclose(plain.means, with_flips.means)


def test_means_are_recomputed_with_the_current_network(tiny_stream: Stream) -> None:
    method = make().learn(tiny_stream[0])
    before = method.means.clone()
    method.learn(tiny_stream[1])
    pixels, labels = method.exemplars()
    torch.testing.assert_close(method.means, mean_directions(method.embed(pixels), labels, 4))
    assert not torch.allclose(method.means[:2], before)


def test_training_is_the_same_as_for_lwf_r(tiny_stream: Stream) -> None:
    icarl, lwf = make(), LwfR(ALEXNET, LwfRSettings.model_validate(SHARED), (1, 8, 8))
    for task in tiny_stream:
        icarl.learn(task)
        lwf.learn(task)
    state = icarl.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in lwf.state_dict().items())
    pixels = torch.cat([test.pixels for test in tiny_stream.tests])
    with torch.no_grad():
        assert torch.equal(SharedNetwork.scores(icarl, pixels), lwf.scores(pixels))
    assert (icarl.scores(pixels).argmax(1) != lwf.scores(pixels).argmax(1)).any()


def test_old_rows_keep_training_in_the_original(tiny_stream: Stream) -> None:
    method = make(variant="rebuffi").learn(tiny_stream[0])
    before = {name: value.clone() for name, value in method.head.state_dict().items()}
    method.learn(tiny_stream[1])
    after = method.head.state_dict()
    assert before
    assert all(not torch.equal(value, after[name]) for name, value in before.items())


def test_a_memory_too_small_for_a_mean_is_refused(tiny_stream: Stream) -> None:
    method = make(memory={"size": 3}).learn(tiny_stream[0])
    with pytest.raises(UserError, match=r"has none for each of 4 classes.*memory.size to 4"):
        method.learn(tiny_stream[1])
    assert len(method.tasks) == 1


def test_all_images_of_a_small_class_are_stored(tiny_stream: Stream) -> None:
    task = tiny_stream[0]
    rows = torch.cat([(task.train.labels == 0).nonzero()[:2, 0], (task.train.labels == 1).nonzero()[:, 0]])
    method = make().learn(replace(task, train=task.train[rows]))
    assert torch.bincount(method.exemplars()[1]).tolist() == [2, 6]


def test_identical_images_end_the_original_herding(tiny_stream: Stream) -> None:
    task = tiny_stream[0]
    same = replace(task.train, pixels=task.train.pixels[task.train.labels])
    method = make(herding="rank").learn(replace(task, train=same))
    assert torch.bincount(method.exemplars()[1]).tolist() == [1, 1]


@pytest.mark.parametrize(("variant", "lr"), [("liu", 2e-3), ("rebuffi", 5e-3)])
def test_learns_digits(variant: str, lr: float, digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    plan = {"epochs": 16, "batch": 16}
    method = make(plan=plan, optimiser={"lr": lr}, memory={"size": 60}, variant=variant)
    for task in stream:
        method.learn(task)
    til, cil = accuracies(method, stream)
    assert til > 0.93
    assert cil > 0.75  # the nearest mean in an untrained network: 0.55
