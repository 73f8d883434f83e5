"""Task streams: which classes of a data set are learned together, and which images are for training, validation,
test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from clom.data.images import DataSet, Images
from clom.data.stratified import hold_out, share_of
from clom.errors import UserError, unknown


@dataclass(frozen=True, eq=False)
class Task:
    """The data of one task for a method. Labels start at 0 within the task.

    Test images are deliberately excluded, so that a method cannot use them.
    """

    name: str
    class_names: tuple[str, ...]
    train: Images
    validation: Images
    outliers: Images | None = None
    """Images of other classes, as examples of what does not belong to the task; labels are those classes. Set by
    methods that store samples of earlier tasks."""

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    def to(self, device: torch.device) -> Task:
        return replace(self, train=self.train.to(device), validation=self.validation.to(device))


class Stream(Sequence[Task]):
    """Tasks in learning order; `tests[k]` are the test images of task k, with labels within that task."""

    def __init__(self, name: str, tasks: Sequence[Task], tests: Sequence[Images], notes: Sequence[str] = ()) -> None:
        """`notes` are messages for the user about how the images were read."""
        if len(tasks) != len(tests):
            raise ValueError(f"{len(tasks)} tasks need {len(tasks)} test sets, got {len(tests)}")
        shapes = {tuple(images.pixels.shape[1:]) for images in (*(task.train for task in tasks), *tests)}
        if len(shapes) > 1:
            raise ValueError(f"all images of a stream must have the same shape, got {sorted(shapes)}")
        self.name = name
        self.tests = list(tests)
        self.notes = tuple(notes)
        self._tasks = tuple(tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        if isinstance(index, slice):
            return Stream(self.name, self._tasks[index], self.tests[index], self.notes)
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def class_names(self) -> tuple[tuple[str, ...], ...]:
        """The class names of each task."""
        return tuple(task.class_names for task in self._tasks)

    @property
    def n_classes(self) -> int:
        """The number of classes of all tasks."""
        return sum(task.n_classes for task in self._tasks)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width as stored (grey images have one channel until `to_unit`)."""
        channels, height, width = self._tasks[0].train.pixels.shape[1:]
        return channels, height, width


def split(
    dataset: DataSet,
    sizes: Sequence[int] | None = None,
    classes_per_task: int | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    *,
    order_seed: int | None = None,
    validation: float = 0.1,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    seed: int = 0,
) -> Stream:
    """Split a data set into tasks by exactly one of `sizes`, `classes_per_task` and `groups` of class names.

    None of them is needed if the data set defines `groups`. Classes are in their original order, as in the paper, or in
    a random order given by `order_seed`. `train_per_class` images of each class are drawn, and the share `validation`
    of them (at least one) is held out. Both draws depend only on `seed` and the class, so they do not change when
    classes move between tasks. The test images drawn by `test_per_class` are the same for every seed, so that runs are
    comparable.
    """
    _check_amounts(validation, train_per_class, test_per_class)
    if any(abs(number) >= 2**63 for number in (seed, order_seed or 0)):
        raise UserError("Seeds must have at most 18 digits.")
    labels_of = _group(dataset, sizes, classes_per_task, groups, order_seed)
    drawn = _draw(dataset, {label for group in labels_of for label in group}, validation, train_per_class, seed)
    tasks, tests = [], []
    for number, group in enumerate(labels_of, start=1):
        names = tuple(dataset.class_names[label] for label in group)
        kept, held = ([drawn[label][part] for label in group] for part in (0, 1))
        tasks.append(Task(f"task {number}", names, _take(dataset.train, kept), _take(dataset.train, held)))
        tests.append(_take(dataset.test, [_test_rows(dataset, label, test_per_class) for label in group]))
    return Stream(dataset.name, tasks, tests, dataset.notes)


def _check_amounts(validation: float, train_per_class: int | None, test_per_class: int | None) -> None:
    if not 0.0 < validation < 1.0:
        raise UserError(f"validation must be a share between 0 and 1, not {validation}.")
    if train_per_class is not None and train_per_class < 2:
        raise UserError(
            f"train_per_class is {train_per_class}: a class needs at least one training and one validation image."
        )
    if test_per_class is not None and test_per_class < 1:
        raise UserError(f"test_per_class is {test_per_class}: a class needs at least one test image.")


def _group(
    dataset: DataSet,
    sizes: Sequence[int] | None,
    classes_per_task: int | None,
    groups: Sequence[Sequence[str]] | None,
    order_seed: int | None,
) -> list[list[int]]:
    """The labels of each task, in order."""
    if dataset.groups is not None and sizes is None and classes_per_task is None and groups is None:
        groups = dataset.groups
    if sum(option is not None for option in (sizes, classes_per_task, groups)) != 1:
        raise UserError("Specify how to split classes into tasks by exactly one of sizes, classes_per_task, groups.")
    if groups is not None:
        if order_seed is not None:
            raise UserError("groups define the order of the classes: remove order_seed.")
        return _named_groups(dataset, groups)
    n_classes = len(dataset.class_names)
    if sizes is None:
        assert classes_per_task is not None
        sizes = _equal_sizes(dataset.name, n_classes, classes_per_task)
    if not sizes or min(sizes) < 1:
        raise UserError(f"Every task needs at least one class, but sizes are {list(sizes)}.")
    if sum(sizes) > n_classes:
        raise UserError(f"Tasks of sizes {list(sizes)} need {sum(sizes)} classes, but {dataset.name} has {n_classes}.")
    order = iter(_class_order(n_classes, order_seed))
    return [[next(order) for _ in range(size)] for size in sizes]


def _equal_sizes(name: str, n_classes: int, classes_per_task: int) -> list[int]:
    if classes_per_task < 1 or n_classes % classes_per_task:
        raise UserError(
            f"The {n_classes} classes of {name} cannot be split evenly into tasks of {classes_per_task}: "
            "choose a divisor, or give the size of each task."
        )
    return [classes_per_task] * (n_classes // classes_per_task)


def _class_order(n_classes: int, order_seed: int | None) -> list[int]:
    if order_seed is None:
        return list(range(n_classes))
    order: list[int] = torch.randperm(n_classes, generator=torch.Generator().manual_seed(order_seed)).tolist()
    return order


def _named_groups(dataset: DataSet, groups: Sequence[Sequence[str]]) -> list[list[int]]:
    label_of = {name: label for label, name in enumerate(dataset.class_names)}
    count = Counter(name for group in groups for name in group)
    for name, times in count.items():
        if name not in label_of:
            raise unknown(f"class of {dataset.name} called", name, label_of)
        if times > 1:
            raise UserError(f"The class '{name}' is listed {times} times: a class belongs to one task.")
    if not groups or not all(groups):
        raise UserError("Every task needs at least one class, but a group is empty.")
    return [[label_of[name] for name in group] for group in groups]


def _draw(
    dataset: DataSet, wanted: set[int], validation: float, train_per_class: int | None, seed: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Training and validation rows of each wanted class.

    Rows of all classes are drawn, wanted or not, so that a class's draw does not depend on which others are used.
    """
    randomness = torch.Generator().manual_seed(seed)
    n_classes = len(dataset.class_names)
    drawn = hold_out(dataset.train.labels, n_classes, share_of(validation), randomness, train_per_class)
    for label in sorted(wanted):
        count = sum(map(len, drawn[label]))
        if count < 2:
            raise UserError(
                f"The class '{dataset.class_names[label]}' of {dataset.name} has {count} training images: "
                "at least 2 are needed, one for training and one for validation."
            )
    return {label: drawn[label] for label in wanted}


def _rows(images: Images, label: int) -> Tensor:
    return (images.labels == label).nonzero()[:, 0]


def _test_rows(dataset: DataSet, label: int, count: int | None) -> Tensor:
    """All test rows of a class, or `count` evenly spaced ones, since the quality of images may drift within a file."""
    rows = _rows(dataset.test, label)
    if not len(rows):
        raise UserError(f"The class '{dataset.class_names[label]}' of {dataset.name} has no test images.")
    if count is None or count >= len(rows):
        return rows
    return rows[torch.arange(count) * len(rows) // count]


def _take(images: Images, rows_of: Sequence[Tensor]) -> Images:
    """The given rows of each class, labelled by the class's position in the task, in file order."""
    rows = torch.cat(list(rows_of))
    labels = torch.cat([torch.full_like(part, local) for local, part in enumerate(rows_of)])
    order = rows.argsort()
    return Images(images.pixels[rows[order]], labels[order])
