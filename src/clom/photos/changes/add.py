"""More photos for classes that a model knows: these classes get better, and every other task stays bit-identical."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from clom.data.folders import Pictures, Skipped, read_classes
from clom.data.images import resized_images
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import OutOfFold, TrainingContext
from clom.methods.families.base import Method, move
from clom.methods.families.task_record import TaskRecord, now
from clom.photos.archives import PhotoFiles
from clom.photos.changes.model_change import changed_model, task_of_class
from clom.photos.examination import remembered_features
from clom.photos.predict import Predictor
from clom.photos.teach import FOLDS, LessonPlan, Listener, Source, plan_of, read_source
from clom.storage.fingerprint import fingerprint
from clom.storage.model_file import load_model


@dataclass(frozen=True)
class Added:
    """What more photos changed."""

    photos: Mapping[str, int]
    """Class -> the number of photos added to it."""
    changed: tuple[str, ...]
    """The tasks of these classes."""
    unchanged: tuple[str, ...]
    """The other tasks, whose fingerprints have been compared."""
    shared: str
    """A sentence about what all tasks share and was renewed; empty if nothing was."""
    files: tuple[str, ...]
    truths: tuple[str, ...]
    """What each photo should be answered as."""
    before: tuple[str | None, ...]
    """The answer to each photo before; None for unknown."""
    after: tuple[str | None, ...]
    """The same with the changed model, which has seen the photo."""
    right_left_out: int | None
    """How many are right if each photo is left out of the fit that answers it; None if there are too few."""
    skipped: tuple[Skipped, ...]

    @property
    def right_before(self) -> int:
        return sum(one == two for one, two in zip(self.truths, self.before, strict=True))

    @property
    def right_after(self) -> int:
        return sum(one == two for one, two in zip(self.truths, self.after, strict=True))


def add_photos(
    path: Path,
    source: Source,
    *,
    links: bool = True,
    listener: Listener | None = None,
    device: torch.device | None = None,
) -> Added:
    """Add photos to classes that the model at `path` knows; the file is replaced atomically at the end."""
    return _add(path, partial(_read, source=source, links=links), listener or Listener(), device)


def look_at_more(path: Path, source: Source, listener: Listener | None = None) -> LessonPlan:
    """Read and check photos as `add_photos` would, and change nothing."""
    return _plan(_read(load_model(path), listener or Listener(), source))


def correct(path: Path, class_name: str, photos: Sequence[Path], device: torch.device | None = None) -> Added:
    """Add photos, also of zip files, to the class that they show."""

    def read(method: Method, listener: Listener) -> Pictures:
        task_of_class(method, class_name)  # raises for an unknown one
        size = method.image_shape[-1]
        with PhotoFiles(photos) as files:
            found = read_classes({class_name: files.paths}, lambda file: files.read(file, size), files.skipped)
        if not found.paths:
            reasons = "; ".join(f"{file.path}: {file.reason}" for file in found.skipped[:3])
            raise UserError(f"None of the photos can be read, so the model is unchanged. {reasons}")
        return found

    return _add(path, read, Listener(), device)


def _add(
    path: Path, read: Callable[[Method, Listener], Pictures], listener: Listener, device: torch.device | None
) -> Added:
    with changed_model(path) as method:
        move(method, device or torch.device("cpu"))
        pictures = read(method, listener)
        if listener.on_plan is not None:
            listener.on_plan(_plan(pictures))
        with remembered_features(method):
            return extend_method(method, pictures, listener)


def extend_method(method: Method, pictures: Pictures, listener: Listener | None = None) -> Added:
    """Add photos to known classes of a method in memory, and bring its records up to date."""
    prints = [fingerprint(method, task) for task in range(len(method.tasks))]
    images = resized_images(pictures.images, method.image_shape)
    before = _answers(method, images.pixels)
    context = TrainingContext((listener or Listener()).on_step, folds=FOLDS)
    extension = method.extend(images, pictures.class_names, context)
    for number in extension.tasks:
        task, unseen = method.tasks[number], [part for part in context.out_of_fold if part.task == number]
        if task.record is not None:
            record = _extended(task.record, task.class_names, extension.photos, unseen)
            record = record.model_copy(update={"extended": now(), "fingerprint": fingerprint(method, number)})
            method.tasks[number] = replace(task, record=record)
    others = [number for number in range(len(method.tasks)) if number not in extension.tasks]
    if any(fingerprint(method, number) != prints[number] for number in others):
        raise RuntimeError(f"{method.name}.extend changed tasks that were given no photos")
    names = {name: task.merged.get(name, name) for task in method.tasks for name in task.class_names}
    return Added(
        photos=extension.photos,
        changed=tuple(method.tasks[number].name for number in extension.tasks),
        unchanged=tuple(method.tasks[number].name for number in others),
        shared=extension.shared,
        files=pictures.file_names,
        truths=tuple(names[pictures.class_names[label]] for label in images.labels.tolist()),
        before=before,
        after=_answers(method, images.pixels),
        right_left_out=_right(context.out_of_fold) if context.out_of_fold else None,
        skipped=pictures.skipped,
    )


def _read(method: Method, listener: Listener, source: Source, links: bool = True) -> Pictures:
    def check(class_names: tuple[str, ...]) -> None:
        for name in class_names:
            task_of_class(method, name)

    return read_source(source, method.image_shape[-1], check, listener, least_images=1, least_classes=1, links=links)


def _plan(pictures: Pictures) -> LessonPlan:
    nothing = pictures.images[:0]
    return plan_of(pictures, Task("more photos", pictures.class_names, pictures.images, nothing))


def _answers(method: Method, pixels: Tensor) -> tuple[str | None, ...]:
    answers = Predictor(method)(pixels, top=1)
    return tuple(None if answer.unknown else answer.best.class_name for answer in answers)


def _extended(
    record: TaskRecord, class_names: Sequence[str], photos: Mapping[str, int], unseen: Sequence[OutOfFold]
) -> TaskRecord:
    """The record with the new photos. What was measured on earlier ones stays, since these are gone."""
    counts = [torch.bincount(part.labels, minlength=len(class_names)).tolist() for part in unseen]
    held = tuple(map(sum, zip(record.validation_images, *counts, strict=True)))
    right = sum(int((part.block.argmax(1) == part.labels).sum()) for part in unseen)
    scores = [score for part in unseen for score in part.belonging.tolist()]
    earlier = record.accuracy * sum(record.validation_images)
    return record.model_copy(
        update={
            "images": tuple(n + photos.get(name, 0) for name, n in zip(class_names, record.images, strict=True)),
            "validation_images": held,
            "accuracy": min(1.0, (earlier + right) / sum(held)) if sum(held) else record.accuracy,
            "belonging": tuple(sorted((*record.belonging, *scores))),
        }
    )


def _right(unseen: Sequence[OutOfFold]) -> int:
    return sum(int((part.scores.argmax(1) == part.start + part.labels).sum()) for part in unseen)
