"""Task streams, and properties of the splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task, split
from clom.errors import UserError

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


def numbered(n: int, n_classes: int, offset: int) -> Images:
    """Images whose pixels encode their number, so that each can be traced through the splits."""
    numbers = torch.arange(n) + offset
    pixels = torch.stack([numbers // 256, numbers % 256], 1).to(torch.uint8).reshape(n, 1, 1, 2)
    return Images(pixels, torch.arange(n) % n_classes)


def numbers(images: Images) -> list[int]:
    flat = images.pixels.long().flatten(1)
    result: list[int] = (flat[:, 0] * 256 + flat[:, 1]).tolist()
    return result


@pytest.fixture(scope="module")
def dataset() -> DataSet:
    return DataSet("zoo", NAMES, numbered(240, 6, 0), numbered(60, 6, 1000))


def test_consecutive_split(dataset: DataSet) -> None:
    stream = split(dataset, classes_per_task=2)
    assert stream.class_names == (("ant", "bee"), ("cat", "dog"), ("eel", "fox"))
    assert [task.name for task in stream] == ["task 1", "task 2", "task 3"]
    assert (stream.name, stream.image_shape, len(stream)) == ("zoo", (1, 1, 2), 3)
    assert (stream.n_classes, stream[:2].n_classes) == (6, 4)
    assert all(task.n_classes == 2 for task in stream)


def test_unequal_sizes_may_omit_classes(dataset: DataSet) -> None:
    assert split(dataset, [3, 1]).class_names == (("ant", "bee", "cat"), ("dog",))


def test_named_groups_keep_their_order(dataset: DataSet) -> None:
    stream = split(dataset, groups=[["fox", "ant"], ["dog"]])
    assert stream.class_names == (("fox", "ant"), ("dog",))
    assert {number % 6 for number in numbers(stream[0].train[stream[0].train.labels == 0])} == {5}


def test_order_seed_permutes_classes(dataset: DataSet) -> None:
    orders = {split(dataset, classes_per_task=1, order_seed=seed).class_names for seed in range(5)}
    assert len(orders) > 1
    assert all(sorted(name for (name,) in order) == sorted(NAMES) for order in orders)
    assert (
        split(dataset, classes_per_task=2, order_seed=3).class_names
        == split(dataset, classes_per_task=2, order_seed=3).class_names
    )


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 6),
    order_seed=st.none() | st.integers(0, 100),
    per_class=st.none() | st.integers(2, 60),
    test_per_class=st.none() | st.integers(1, 12),
    validation=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
)
def test_properties(
    dataset: DataSet,
    sizes: list[int],
    order_seed: int | None,
    per_class: int | None,
    test_per_class: int | None,
    validation: float,
    seed: int,
) -> None:
    stream = split(
        dataset,
        sizes,
        order_seed=order_seed,
        validation=validation,
        train_per_class=per_class,
        test_per_class=test_per_class,
        seed=seed,
    )
    seen: list[int] = []
    for task, test in zip(stream, stream.tests, strict=True):
        kept, held = numbers(task.train), numbers(task.validation)
        assert not set(kept) & set(held)
        seen += kept + held
        for local, name in enumerate(task.class_names):
            kept_here, held_here, test_here = (
                numbers(images[images.labels == local]) for images in (task.train, task.validation, test)
            )
            original = NAMES.index(name)
            assert {number % 6 for number in kept_here + held_here} == {original}
            assert {(number - 1000) % 6 for number in test_here} == {original}
            chosen = len(kept_here) + len(held_here)
            assert chosen == min(per_class or 40, 40)
            assert len(held_here) == min(max(1, round(validation * chosen)), chosen - 1)
            assert len(test_here) == min(test_per_class or 10, 10)
        assert all(number < 1000 for number in kept + held)
        assert all(number >= 1000 for number in numbers(test))
        for images in (task.train, task.validation, test):
            assert set(images.labels.tolist()) == set(range(task.n_classes))
    assert len(seen) == len(set(seen))


def test_train_and_validation_cover_the_whole_class(dataset: DataSet) -> None:
    stream = split(dataset, [6])
    assert sorted(numbers(stream[0].train) + numbers(stream[0].validation)) == list(range(240))
    assert len(stream[0].validation) == 24
    assert numbers(stream.tests[0]) == list(range(1000, 1060))


def test_the_draw_depends_on_the_seed(dataset: DataSet) -> None:
    held = [numbers(split(dataset, [6], seed=seed)[0].validation) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_global_random_state_is_neither_used_nor_changed(dataset: DataSet) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = numbers(split(dataset, [6], order_seed=1)[0].validation)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert numbers(split(dataset, [6], order_seed=1)[0].validation) == first


def test_draw_of_a_class_does_not_depend_on_the_tasks(dataset: DataSet) -> None:
    def held(stream: Stream) -> set[int]:
        return {number for task in stream for number in numbers(task.validation)}

    assert held(split(dataset, [6])) == held(split(dataset, classes_per_task=2, order_seed=4))
    assert held(split(dataset, groups=[["fox"]])) < held(split(dataset, [6]))


def test_larger_budget_contains_the_smaller(dataset: DataSet) -> None:
    def chosen(count: int) -> set[int]:
        task = split(dataset, [6], train_per_class=count)[0]
        return {*numbers(task.train), *numbers(task.validation)}

    assert chosen(5) < chosen(20)


def test_a_smaller_test_set_is_evenly_spaced_and_the_same_for_all_seeds(dataset: DataSet) -> None:
    tests = [numbers(split(dataset, [6], test_per_class=5, seed=seed).tests[0]) for seed in (0, 1)]
    assert tests[0] == tests[1]
    assert [number for number in tests[0] if (number - 1000) % 6 == 0] == [1000, 1012, 1024, 1036, 1048]


def test_slice_of_a_stream_is_a_stream(dataset: DataSet) -> None:
    stream = split(dataset, classes_per_task=2)
    part = stream[1:]
    assert isinstance(part, Stream)
    assert part.class_names == stream.class_names[1:]
    assert part.tests[0] is stream.tests[1]
    assert stream[-1] is part[1]


def test_stream_checks_its_parts(dataset: DataSet) -> None:
    task = split(dataset, [2])[0]
    with pytest.raises(ValueError, match="1 tasks need 1 test sets"):
        Stream("x", [task], [])
    wide = Images(torch.zeros(1, 1, 1, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="same shape"):
        Stream("x", [task], [wide])
    assert not hasattr(Task, "test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of sizes, classes_per_task, groups"),
        ({"sizes": [2], "classes_per_task": 2}, "exactly one of"),
        ({"sizes": [4, 3]}, r"Tasks of sizes \[4, 3\] need 7 classes, but zoo has 6"),
        ({"sizes": []}, "at least one class"),
        ({"sizes": [2, 0]}, "at least one class"),
        ({"classes_per_task": 4}, "6 classes of zoo cannot be split evenly into tasks of 4"),
        ({"classes_per_task": 0}, "cannot be split evenly into tasks of 0"),
        ({"groups": [["ant"], ["bee", "ant"]]}, "'ant' is listed 2 times"),
        ({"groups": [["ant"], ["foks"]]}, "class of zoo called 'foks'. Did you mean 'fox'"),
        ({"groups": [["ant"], []]}, "a group is empty"),
        ({"groups": []}, "a group is empty"),
        ({"groups": [["ant"]], "order_seed": 1}, "remove order_seed"),
        ({"sizes": [2], "validation": 0.0}, "validation must be a share between 0 and 1, not 0.0"),
        ({"sizes": [2], "validation": 1.0}, "validation must be a share"),
        ({"sizes": [2], "train_per_class": 1}, "train_per_class is 1"),
        ({"sizes": [2], "test_per_class": 0}, "test_per_class is 0"),
    ],
)
def test_errors_of_split(dataset: DataSet, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(dataset, **arguments)


def with_rows(dataset: DataSet, train: Sequence[int], test: Sequence[int]) -> DataSet:
    return DataSet("tiny", NAMES, dataset.train[torch.tensor(train)], dataset.test[torch.tensor(test)])


def test_class_with_too_few_images(dataset: DataSet) -> None:
    few = with_rows(dataset, [0, 6, 1], [0])
    assert len(split(few, [1])[0].train) == 1
    with pytest.raises(UserError, match="The class 'bee' of tiny has 1 training images: at least 2"):
        split(few, [2])
    with pytest.raises(UserError, match="The class 'bee' of tiny has no test images"):
        split(with_rows(dataset, [0, 6, 1, 7], [0]), [2])


def test_ood_sets_without_training_images_cannot_be_split(dataset: DataSet) -> None:
    nothing = DataSet("ood", NAMES, dataset.train[:0], dataset.test)
    with pytest.raises(UserError, match="'ant' of ood has 0 training images"):
        split(nothing, [6])
