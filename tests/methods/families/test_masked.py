"""Combinations of protection and learner: HAT, SupSup and SupSup (OOD in CLOM)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Stream, Task
from clom.learning.protection.supermask import MaskedHead
from clom.methods.families.base import LearnedTask
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.task_network import TaskNetwork
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


def test_scale_of_sorted_data_represents_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean score of the true class, where every image's score is its class number; 5 of 30 classes fill the first
    2,000 rows."""
    labels = torch.arange(30).repeat_interleave(400)
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    images = Images(pixels, labels)
    task = Task("sorted", tuple(map(str, range(30))), images, images[slice(0, 0)])
    method = make("hat", ALEXNET, 0)
    asked: list[int] = []

    def block(pixels: Tensor, task: int) -> Tensor:
        asked.append(len(pixels))
        return pixels[:, 0, 0, :1].float().repeat(1, 30)

    monkeypatch.setattr(method, "block", block)
    assert float(method._typical_score(task, 0)) == pytest.approx(14.5, abs=0.2)
    assert asked == [2000]


def test_neither_threads_nor_the_number_of_images_change_the_scores() -> None:
    model = make("hat", NETS["resnet"], 0)
    for name in ("a", "b", "c"):
        model.open_task(LearnedTask(name, (f"{name}1", f"{name}2")))
    pixels = torch.randint(0, 256, (70, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    scores = {}
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            scores[threads] = torch.cat(model.blocks(pixels), 1)
        alone = torch.cat([torch.cat(model.blocks(image[None]), 1) for image in pixels])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(scores[1], scores[3])
    torch.testing.assert_close(alone, scores[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("threads", "n_tasks", "expected"), [(2, 3, [2, 2, 4, 4]), (4, 1, [1, 1, 1, 1]), (3, 4, [4] * 4)]
)
def test_the_last_networks_are_divided_if_threads_would_be_idle(
    threads: int, n_tasks: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image in four rotations. Four views cannot be divided by three threads."""
    model = make("supsup-ood", NETS["resnet"], 0)
    for number in range(n_tasks):
        model.open_task(LearnedTask(f"{number}", (f"{number}a", f"{number}b")))
    pixels = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    asked: list[int] = []

    def counted(network: TaskNetwork) -> None:
        features_of = network.features_of
        network.features_of = lambda views: (asked.append(len(views)), features_of(views))[1]  # type: ignore[func-returns-value]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = model.all_outputs(pixels, with_features=True)
        torch.set_num_threads(threads)
        model.blocks(pixels)  # tries out whether chunks have the same bits
        for task in range(n_tasks):
            counted(model._network(task))
        together = model.all_outputs(pixels, with_features=True)
        assert sorted(asked) == sorted(expected)
        monkeypatch.setattr(TaskNetwork, "has_same_bits_in_chunks", lambda *_: False)
        asked.clear()
        whole = model.blocks(pixels)
    finally:
        torch.set_num_threads(before)
    assert asked == [4] * n_tasks
    for task in range(n_tasks):
        assert torch.equal(alone[task].block, together[task].block)
        assert torch.equal(alone[task].block, whole[task])
        one_thread, several = alone[task].features, together[task].features
        assert one_thread is not None
        assert several is not None
        assert torch.equal(one_thread, several)


@pytest.mark.parametrize("net", [ResNet18Settings(width=16), AlexNetSettings()])
@pytest.mark.parametrize("images", [1, 2, 40])
def test_old_tasks_keep_their_bits_on_several_threads(net: NetSettings, images: int) -> None:
    """With more tasks there are more networks to share the threads, and sums depend on the number of those."""
    maker = method_class("clom")
    model = maker(net, maker.settings_type(), (3, 32, 32), 0)
    pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    first = []
    try:
        torch.set_num_threads(4)
        for number in range(5):
            model.open_task(LearnedTask(f"{number}", tuple(f"{number}.{label}" for label in range(10))))
            first.append(model.blocks(pixels)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(block, first[0]) for block in first)


def test_a_lesson_does_not_hide_that_weights_of_old_tasks_have_changed(tiny_stream: Stream) -> None:
    method, pixels = make("hat", ALEXNET, 0).learn(tiny_stream[0]), tiny_stream[0].validation.pixels
    before = method.block(pixels, 0)
    with torch.no_grad():
        for weight in method.protection.net.shared_parameters():
            weight.mul_(1.5)  # as if the protection had failed
    method.learn(tiny_stream[1])
    assert not torch.equal(method.block(pixels, 0), before)
