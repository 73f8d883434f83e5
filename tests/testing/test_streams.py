"""`check_stream`: every stream of ours passes, and every broken one is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from clom.data import catalog
from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task
from clom.experiments.catalogue import BUDGETS, experiment_names
from clom.experiments.config import resolve
from clom.testing import check_stream, tiny_stream


def made_up(shape: tuple[int, int, int], n_classes: int) -> DataSet:
    """Enough images of every class of a published set to split it."""
    labels = torch.arange(n_classes).repeat(4)
    pixels = torch.randint(0, 256, (len(labels), *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images = Images(pixels, labels)
    return DataSet("made up", tuple(f"class {label}" for label in range(n_classes)), images, images)


CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("experiment", experiment_names())
def test_every_experiment(experiment: str, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(experiment, budget=budget)
    shape = config.image_shape()
    if config.data.set != "digits":
        monkeypatch.setattr(catalog, "load", lambda name, folder=None: made_up(shape, CLASSES[name]))
    stream = config.data.stream(None, 0)
    check_stream(stream)
    assert stream.image_shape == tuple(shape)


@pytest.mark.parametrize(("image_size", "channels"), [(8, 1), (8, 3), (16, 1), (32, 3)])
def test_the_tiny_stream(image_size: int, channels: int) -> None:
    stream = tiny_stream(image_size, channels)
    check_stream(stream)
    assert stream.image_shape == (channels, image_size, image_size)
    assert [task.n_classes for task in stream] == [2, 2, 2]
    assert [len(task.train) for task in stream] == [24, 24, 24]
    assert [len(task.validation) for task in stream] == [8, 8, 8]
    assert [len(test) for test in stream.tests] == [16, 16, 16]


# --- broken streams --------------------------------------------------------------------------------------------------


def changed(change: Callable[[Task], Task], number: int = 1) -> Stream:
    stream = tiny_stream()
    tasks = [change(task) if at == number else task for at, task in enumerate(stream)]
    return Stream(stream.name, tasks, stream.tests)


def relabelled(images: Images, offset: int) -> Images:
    return Images(images.pixels, images.labels + offset)


def narrow(images: Images) -> Images:
    return Images(images.pixels[..., :-1], images.labels)


def only_first(images: Images) -> Images:
    return images[images.labels == 0]


def all_narrow() -> Stream:
    stream = tiny_stream()
    tasks = [replace(task, train=narrow(task.train), validation=narrow(task.validation)) for task in stream]
    return Stream("narrow", tasks, [narrow(test) for test in stream.tests])


BROKEN: dict[str, tuple[Callable[[], Stream], str]] = {
    "no task": (lambda: Stream("none", [], []), "The stream has no task. The contract: a stream has at least one task"),
    "a class twice": (
        lambda: changed(lambda task: replace(task, class_names=("0", "3"))),
        "The class 0 occurs more than once",
    ),
    "a task name twice": (
        lambda: changed(lambda task: replace(task, name="task 1")),
        "The task task 1 occurs more than once",
    ),
    "no name": (lambda: changed(lambda task: replace(task, class_names=("", "3"))), "A class has an empty name"),
    "labels go on": (
        lambda: changed(lambda task: replace(task, train=relabelled(task.train, 2))),
        r"training images of task 'task 2' have labels \[2, 3\].*count from 0 within their task",
    ),
    "a class without images": (
        lambda: changed(lambda task: replace(task, train=only_first(task.train))),
        "no training images of 3 in task 'task 2'",
    ),
    "no validation images": (
        lambda: changed(lambda task: replace(task, validation=task.validation[:0])),
        "no validation images of 2, 3",
    ),
    "validation of another shape": (
        lambda: changed(lambda task: replace(task, validation=narrow(task.validation))),
        r"validation images of task 'task 2' have shape \(1, 8, 7\), others \(1, 8, 8\)",
    ),
    "not square": (all_narrow, "Images are 8 x 7"),
    "blank": (
        lambda: changed(
            lambda task: replace(task, train=Images(torch.zeros_like(task.train.pixels), task.train.labels))
        ),
        "All training images of task 'task 2' are the same",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_named(case: str) -> None:
    make, told = BROKEN[case]
    with pytest.raises(AssertionError, match=told):
        check_stream(make())


def test_test_images_count_too() -> None:
    stream = tiny_stream()
    stream.tests[2] = only_first(stream.tests[2])
    with pytest.raises(AssertionError, match="no test images of 5 in task 'task 3'"):
        check_stream(stream)
