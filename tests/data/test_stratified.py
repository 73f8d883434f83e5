"""Stratified hold-out, and the exact rows that each of its callers draws, since results depend on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clom.data import catalog
from clom.data.folders import Pictures
from clom.data.images import DataSet, Images
from clom.data.sources import DataSettings
from clom.data.stratified import balanced_rows, hold_out, share_of, split_images
from clom.data.stream import Task, split
from clom.estimator.classifier import ClomClassifier
from clom.learning.loop import generator
from clom.methods.bic import Bic, BicSettings
from clom.methods.clom import Clom
from clom.methods.families.base import LearnedTask
from clom.nets import AlexNetSettings

LABELS = torch.tensor([0, 1, 2, 1, 0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 0, 1, 1, 0, 0, 1, 2, 1, 0, 1, 2])
NAMES = ("a", "b", "c")


def numbered(labels: torch.Tensor = LABELS, side: int = 8) -> Images:
    """Images whose pixels are their row number."""
    rows = torch.arange(len(labels), dtype=torch.uint8)
    return Images(rows.view(-1, 1, 1, 1).repeat(1, 1, side, side), labels)


def rows_of(*parts: Images) -> list[list[int]]:
    return [part.pixels[:, 0, 0, 0].tolist() for part in parts]


def test_a_stream() -> None:
    dataset = DataSet("numbers", NAMES, numbered(), numbered())
    stream = split(dataset, groups=[["b"], ["a", "c"]], validation=0.25, train_per_class=8, seed=3)
    assert rows_of(stream[0].train, stream[0].validation) == [[1, 5, 8, 15, 16, 19], [21, 23]]
    assert rows_of(stream[1].train, stream[1].validation) == [[4, 6, 9, 12, 13, 17, 18, 20, 22, 24], [0, 2, 14]]


def test_own_photos() -> None:
    pictures = Pictures(NAMES, numbered(), tuple(Path(str(row)) for row in range(len(LABELS))), ())
    task = pictures.task("numbers", seed=5)
    held = [4, 5, 10, 11, 12]
    assert rows_of(task.train, task.validation) == [[row for row in range(25) if row not in held], held]
    lone = Pictures(("a", "b"), numbered(torch.tensor([0, 1, 0])), (Path(),) * 3, ())
    task = lone.task("lone")
    assert rows_of(task.train, task.validation) == [[1, 2], [0]]


class _Seen(Exception):
    pass


@pytest.mark.parametrize(
    ("validation", "labels", "rows"),
    [
        (0.2, LABELS, [[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 20, 21, 23, 24], [5, 12, 18, 19, 22]]),
        (0.9, torch.tensor([0, 1, 1, 1]), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
    ids=["usual", "few images"],
)
def test_the_estimator(
    validation: float, labels: torch.Tensor, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Task] = []

    def learn(self: Clom, task: Task) -> None:
        seen.append(task)
        raise _Seen

    monkeypatch.setattr(Clom, "learn", learn)
    pixels = numbered(labels).pixels.numpy()
    with pytest.raises(_Seen):
        ClomClassifier(validation=validation, random_state=4).partial_fit(pixels, labels.numpy().astype(np.int64))
    assert rows_of(seen[0].train, seen[0].validation) == rows


def test_bic() -> None:
    settings = BicSettings.model_validate({"memory": {"size": 60}})
    method = Bic(
        AlexNetSettings(channels=(2, 2, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=2), settings, (1, 8, 8), seed=6
    )
    task = Task("numbers", NAMES, numbered(), numbered())
    method.open_task(LearnedTask(task.name, task.class_names))
    assert [[rows.tolist() for rows in part] for part in method._split(task)] == [
        [[10, 9, 22, 14, 0, 7, 4, 18, 17], [11, 3, 19, 1, 16, 23, 5, 21, 8], [2, 12, 24, 20]],
        [[13], [15], [6]],
    ]


def test_recipes_chosen_on_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DataSet("numbers", NAMES, numbered(), numbered())
    monkeypatch.setattr(catalog, "load", lambda *_: dataset)
    stream = DataSettings(set="numbers", classes_per_task=3, train_per_class=8, held_out=0.2).stream(None, seed=0)
    assert rows_of(stream[0].train, stream[0].validation, stream.tests[0]) == [
        [0, 1, 2, 3, 7, 8, 13, 14, 19, 20, 21, 22, 24],
        [6, 9, 16],
        [4, 5, 10, 11, 12],
    ]


def test_images_to_choose_settings_by_are_neither_learned_nor_tested(digits: DataSet) -> None:
    wanted = DataSettings(set="digits", classes_per_task=2, held_out=0.2)
    black = replace(digits, test=Images(torch.zeros_like(digits.test.pixels), digits.test.labels))
    for dataset in (digits, black):  # the test images make no difference
        stream = wanted.tasks_of(dataset, seed=0)
        held = contents(*stream.tests)
        learned = contents(*(part for task in stream for part in (task.train, task.validation)))
        assert len(held) == sum(round(0.2 * int((digits.train.labels == label).sum())) for label in range(10))
        assert len(held) + len(learned) == len(digits.train)
        assert set(held) | set(learned) == set(contents(digits.train))
        assert not set(held) & set(learned)
    other_seed = wanted.tasks_of(digits, seed=1)
    assert contents(*other_seed.tests) == held, "the same for every seed"
    first = wanted.model_copy(update={"first_tasks": 3}).tasks_of(digits, seed=0)
    assert contents(*first.tests) == contents(*stream.tests[:3])
    assert contents(first[2].train) == contents(stream[2].train)


def contents(*parts: Images) -> list[bytes]:
    return [image.numpy().tobytes() for part in parts for image in part.pixels]


def test_every_class_is_held_out_proportionally() -> None:
    for share, held in ((0.25, [2, 2, 1]), (0.0, [1, 1, 1]), (1.0, [9, 9, 4])):
        drawn = hold_out(LABELS, 3, share_of(share), torch.Generator().manual_seed(0))
        assert [len(part) for _, part in drawn] == held
        for label, (kept, part) in enumerate(drawn):
            assert sorted([*kept.tolist(), *part.tolist()]) == LABELS.eq(label).nonzero().flatten().tolist()
        train, validation = split_images(numbered(), drawn)
        first, second = rows_of(train, validation)
        assert sorted(first + second) == list(range(len(LABELS)))
        assert (first, second) == (sorted(first), sorted(second))


def test_a_larger_limit_contains_the_smaller_one() -> None:
    few, many = (hold_out(LABELS, 3, lambda n: n, torch.Generator().manual_seed(1), most)[0][1] for most in (3, 7))
    assert many[:3].tolist() == few.tolist()


def test_a_single_image_is_not_held_out() -> None:
    ((kept, held),) = hold_out(torch.tensor([0]), 1, share_of(0.5), torch.Generator())
    assert (kept.tolist(), held.tolist()) == ([0], [])


def test_balanced_rows_are_random_and_equally_many_of_each_class() -> None:
    labels = torch.arange(5).repeat_interleave(40)  # sorted
    rows = balanced_rows(labels, 50, generator(0))
    assert torch.bincount(labels[rows]).tolist() == [10] * 5
    assert len(set(rows.tolist())) == 50
    assert rows.tolist() != balanced_rows(labels, 50, generator(1)).tolist()
    assert not any(set(rows.tolist()) >= set(range(start, start + 10)) for start in range(0, 200, 40))
    assert sorted(torch.bincount(labels[balanced_rows(labels, 52, generator(0))]).tolist()) == [10, 10, 10, 11, 11]


def test_balanced_rows_of_a_small_class_are_all_of_it() -> None:
    labels = torch.tensor([0] * 30 + [1] * 3)
    assert torch.bincount(labels[balanced_rows(labels, 20, generator(0))]).tolist() == [17, 3]
    assert sorted(balanced_rows(labels, 100, generator(0)).tolist()) == list(range(33))
