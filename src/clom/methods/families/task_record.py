"""What a model knows about each task besides its weights: its names, and what the model file records."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import AfterValidator, AwareDatetime, Field

from clom.data.stream import Task
from clom.errors import UserError
from clom.ood.rejection import HeldOutScores
from clom.settings import Count, Settings
from clom.untrusted_text import check_names


def _ascending(scores: tuple[float, ...]) -> tuple[float, ...]:
    if any(one > two for one, two in pairwise(scores)):
        raise ValueError("scores must be in ascending order")
    return scores


Score = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Scale = Annotated[float, Field(gt=0, le=1e6)]


class TaskRecord(Settings):
    """Written once, right after the task was learned."""

    former_names: ClassVar[Mapping[str, str]] = {"sharpness": "logit_scale"}
    learned: AwareDatetime
    images: tuple[Count, ...]
    """Training images of each class."""
    validation_images: tuple[Count, ...]
    """Held-out images of each class, which the numbers below were measured on."""
    accuracy: Share
    """On the held-out images, among the classes of this task."""
    logit_scale: Scale = 1.0
    """Inverse temperature: the factor of the calibrated scores before the softmax over the classes of all tasks so far,
    fitted to the held-out images."""
    task_logit_scale: Scale | None = None
    """The same for the uncalibrated scores and the classes of this task alone. None in files of earlier versions."""
    belonging: Annotated[tuple[Score, ...], AfterValidator(_ascending)] = ()
    """In-distribution score of each held-out image, sorted: the threshold for any rejection rate follows from it."""
    extended: AwareDatetime | None = None
    """When photos were last added to classes of this task; None if never."""
    cross_fitted: bool = False
    """Whether the held-out images are the training images, each judged by a fit without it."""
    fingerprint: str
    """Hash of everything the task's scores are computed from: see `clom.storage.fingerprint`."""

    @property
    def own_scores(self) -> HeldOutScores:
        """The scores that decide whether an image is unknown to this task."""
        return HeldOutScores(self.belonging)

    @property
    def day(self) -> str:
        """When it was learned, or last extended."""
        return (self.extended or self.learned).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class LearnedTask:
    """A learned task without its weights: names and, if there is one, its record."""

    name: str
    class_names: tuple[str, ...]
    record: TaskRecord | None = None
    """When and from which data it was learned."""
    units: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Gate group -> its number of units when the task was learned; empty for networks that do not grow."""
    merged: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Class of this task -> the class, of any task, that it is answered as. Scores keep one column for each."""

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The class that each column of the task's scores is answered as."""
        return tuple(self.merged.get(name, name) for name in self.class_names)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    def without_merges_into(self, gone: Collection[str]) -> LearnedTask:
        """The task after these classes, of another task, have been removed: what was merged into them stands alone."""
        return replace(self, merged={name: into for name, into in self.merged.items() if into not in gone})


def now() -> datetime:
    """The current time in UTC, to the second; or that of the environment variable SOURCE_DATE_EPOCH, by which programs
    agree to write the same bytes again (reproducible-builds.org)."""
    chosen = os.environ.get("SOURCE_DATE_EPOCH", "")
    if chosen.isascii() and chosen.isdecimal() and len(chosen) < 12:
        return datetime.fromtimestamp(int(chosen), UTC)
    return datetime.now(UTC).replace(microsecond=0)


def check_new_task(learned: Sequence[LearnedTask], name: str, class_names: Sequence[str]) -> None:
    """Raise unless the names of a task and its classes can be used and differ from those learned before."""
    check_names(name, class_names)
    if name in {task.name for task in learned}:
        raise UserError(f"There is a task '{name}' already: two tasks cannot have the same name.")
    if repeated := {known for task in learned for known in task.class_names}.intersection(class_names):
        raise UserError(f"Task '{name}' contains classes learned before: {', '.join(sorted(repeated))}.")


def check_task(task: Task, learned: Sequence[LearnedTask], image_shape: tuple[int, ...]) -> None:
    """Raise unless a method that learns images of this shape can learn the task."""
    shape = tuple(task.train.pixels.shape[1:])
    if shape != image_shape:
        raise UserError(f"Task '{task.name}' has images of shape {shape}, but this model learns {image_shape}.")
    if task.n_classes < 1 or len(task.train) == 0:
        raise UserError(f"Task '{task.name}' has nothing to learn: {task.n_classes} classes, no images.")
    check_new_task(learned, task.name, task.class_names)
    if missing := set(range(task.n_classes)) - set(task.train.labels.tolist()):
        names = ", ".join(task.class_names[label] for label in sorted(missing))
        raise UserError(f"Task '{task.name}' has no training images of: {names}.")
