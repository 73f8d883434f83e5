"""The scorebook computes scores once if memory is exact, and restores only scores of its own test sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import UserError
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.nets import AlexNetSettings
from clom.settings import Settings

CLASSES = (2, 3, 1, 2)


class Forgetful(Method):
    """Scores that encode model, image and number of tasks; every computed pair is recorded."""

    name = "forgetful"
    settings_type = Settings
    exact_memory = False

    def __init__(self) -> None:
        super().__init__(AlexNetSettings(), Settings(), (1, 1, 1))
        self.computed: list[tuple[int, int]] = []

    def _open_task(self, task: LearnedTask) -> None:
        pass

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pass

    def block(self, pixels: Tensor, task: int) -> Tensor:
        image = pixels.flatten(1)[:, :1].float()
        self.computed.append((task, int(image[0])))
        value = image + 100 * task + (0 if self.exact_memory else 1000 * len(self.tasks))
        return value.expand(-1, self.tasks[task].n_classes)

    def blocks(self, pixels: Tensor) -> Blocks:
        return [self.block(pixels, task) for task in range(len(self.tasks))]


class Exact(Forgetful):
    name = "exact"
    exact_memory = True


def images_of(test: int, count: int) -> Images:
    pixels = torch.full((count, 1, 1, 1), test, dtype=torch.uint8)
    return Images(pixels, torch.arange(count) % CLASSES[test])


def make_tests() -> list[Images]:
    return [images_of(test, test + 2) for test in range(len(CLASSES))]


def learn_next(method: Method) -> None:
    number = len(method.tasks)
    names = tuple(f"{number}.{label}" for label in range(CLASSES[number]))
    method.learn(Task(f"task {number}", names, images_of(number, 6), images_of(number, 6)))


def test_exact_memory_computes_every_pair_once() -> None:
    method, book = Exact(), Scorebook(make_tests())
    for n_tasks in range(1, 5):
        learn_next(method)
        book.update(method)
        assert book.passes == n_tasks**2
    assert sorted(method.computed) == [(model, test) for model in range(4) for test in range(4)]
    book.update(method)
    assert len(method.computed) == 16


def test_each_network_processes_each_test_set_once_over_repeated_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Evaluating after each of T tasks costs a task's network T passes in total, counted at its input."""
    net = AlexNetSettings(channels=(2, 2, 2), kernels=(1, 1, 1), pools=(1, 1, 1), hidden=3)
    method = Clom(net, ClomSettings(), (1, 4, 4))
    seen: Counter[int] = Counter()
    original = method.protection.inference_features

    def counted(task: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        features_of, kept = original(task)

        def count(images: Tensor) -> Tensor:
            seen[task] += len(images)
            return features_of(images)

        return count, kept

    monkeypatch.setattr(method.protection, "inference_features", counted)
    n_tasks, n_images = 4, 5
    labels = torch.zeros(n_images, dtype=torch.int64)
    book = Scorebook([Images(torch.zeros(n_images, 1, 4, 4, dtype=torch.uint8), labels)] * n_tasks)
    for number in range(n_tasks):
        method.open_task(LearnedTask(f"task {number}", (f"class {number}",)))
        for _ in range(2):  # the second update computes nothing
            book.update(method)
        assert seen == dict.fromkeys(range(number + 1), (number + 1) * n_images * 4)  # four rotations per image
    assert book.passes == n_tasks**2


def test_without_exact_memory_all_pairs_are_recomputed_after_each_task() -> None:
    method, book = Forgetful(), Scorebook(make_tests())
    for _ in range(4):
        learn_next(method)
        book.update(method)
    assert len(method.computed) == 1 + 4 + 9 + 16
    assert book.passes == 30
    assert all(float(block[0, 0]) >= 4000 for test in range(4) for block in book.blocks(test))


@pytest.mark.parametrize("maker", [Exact, Forgetful])
def test_blocks_are_those_of_every_model_on_the_given_test_set(maker: type[Forgetful]) -> None:
    method, book = maker(), Scorebook(make_tests())
    for _ in range(3):
        learn_next(method)
        book.update(method)
    later = 0 if maker is Exact else 3000
    blocks = book.blocks(1)
    assert [tuple(block.shape) for block in blocks] == [(3, 2), (3, 3), (3, 1)]
    assert [float(block[2, 0]) for block in blocks] == [later + 1, later + 101, later + 201]
    assert torch.equal(book.labels(1), torch.tensor([0, 1, 2]))


def filled() -> tuple[Exact, Scorebook]:
    method, book = Exact(), Scorebook(make_tests())
    for _ in range(2):
        learn_next(method)
        book.update(method)
    return method, book


def test_restored_scores_are_not_computed_again() -> None:
    method, book = filled()
    method.computed.clear()
    again = Scorebook(make_tests())
    again.restore(book.all_blocks())
    again.update(method)
    assert method.computed == []
    for test in range(2):
        for old, new in zip(book.blocks(test), again.blocks(test), strict=True):
            assert torch.equal(old, new)
    learn_next(method)
    again.update(method)
    assert sorted(method.computed) == [(0, 2), (1, 2), (2, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    "foreign",
    [
        [[torch.zeros(7, 2)]],  # another number of test images
        [[torch.zeros(2, 2)] * 9] * 9,  # test sets that this stream does not have
    ],
    ids=["images", "sets"],
)
def test_foreign_scores_are_refused(foreign: list[list[Tensor]]) -> None:
    with pytest.raises(UserError, match="do not belong"):
        Scorebook(make_tests()).restore(foreign)
