"""Add classes to a model file: from a folder (command line) or from images in memory (server)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clom.data.folders import Pictures, Skipped, read_folder
from clom.data.images import resized_images
from clom.data.stream import Task
from clom.errors import UserError
from clom.files import file_state, remove_temporary_files
from clom.learning.context import Checkpoints, TrainingContext
from clom.learning.progress import OnProgress, ignore
from clom.locks import Lock
from clom.methods.families.base import Method, move
from clom.methods.families.frozen import FrozenMethod
from clom.methods.families.task_record import TaskRecord
from clom.photos import presets as create
from clom.photos.archives import is_zip, read_zip
from clom.photos.examination import HeldOut, examine, examine_folds, remembered_features
from clom.photos.hints import Hint, hints
from clom.photos.previous import save_change
from clom.storage.checkpoints import checkpoints_for_model, lesson_folder
from clom.storage.model_file import load_model
from clom.untrusted_text import check_names

Source = Path | Callable[[int], Pictures]
"""A folder with one sub-folder of photos per class, the same as a zip file, or a function from an image size to square
images of that size."""

NEARLY_FULL = 0.95
FOLDS = 5
"""Of cross-fitting, in lessons of methods that are fitted in closed form."""
_GENERIC_NAMES = {"train", "training", "images", "photos", "pictures", "data"}


@dataclass(frozen=True)
class LessonPlan:
    """Summary of a task before training."""

    task: str
    class_names: tuple[str, ...]
    n_train: int
    n_validation: int
    skipped: tuple[Skipped, ...]
    hints: tuple[Hint, ...]
    """What to look at before these photos are learned."""
    n_outside: int = 0
    """Pictures that are links to files outside the folder."""


@dataclass(frozen=True)
class Lesson:
    """Summary of a learned task."""

    task: str
    class_names: tuple[str, ...]
    record: TaskRecord
    skipped: tuple[Skipped, ...]
    seconds: float
    accuracy_among_all: float
    """Class-incremental accuracy on the held-out images."""
    n_tasks: int
    n_classes: int
    capacity: dict[str, float]
    """Gate group -> fraction of its units in use; empty for methods without gates."""
    created: bool
    held_out: HeldOut

    @property
    def full(self) -> list[str]:
        """Gate groups with almost no free units."""
        return [group for group, used in self.capacity.items() if used > NEARLY_FULL]


@dataclass(frozen=True)
class Listener:
    """Callbacks during training."""

    on_file: Callable[[int, int], None] | None = None
    """After every file: the number read and the total."""
    on_plan: Callable[[LessonPlan], None] | None = None
    """Once, before training."""
    on_step: OnProgress = ignore
    """After every training step."""


def teach(
    path: Path,
    source: Source,
    name: str | None = None,
    *,
    method: str | None = None,
    backbone: str | None = None,
    size: int | None = None,
    seed: int | None = None,
    links: bool = True,
    listener: Listener | None = None,
    device: torch.device | None = None,
) -> Lesson:
    """Add the classes of `source` as one task to the model at `path`, which is created if it does not exist.

    The file is replaced atomically at the end; the same call resumes an interrupted training. `method`, `backbone`,
    `size` and `seed` configure a new model and must match an existing one. Without `links`, pictures that are links to
    files outside the folder are skipped. A lock admits one process at a time.
    """
    listener = listener or Listener()
    if isinstance(source, Path) and not source.exists():  # noticed before a model is loaded
        raise UserError(f"There is no folder {source}.")
    with Lock(path):
        remove_leftovers(path)
        before = file_state(path)
        created = before is None
        learner = make_learner(method, backbone, seed, size) if created else _open(path, method, backbone, seed, size)
        move(learner, device or torch.device("cpu"))
        name = name or _default_name(learner, source)
        pictures = _pictures(source, learner, name, listener, links)
        lesson = _learn(learner, pictures, name, listener, partial(checkpoints_for_model, path))
        save_change(path, learner, before)
        shutil.rmtree(lesson_folder(path), ignore_errors=True)
    return replace(lesson, created=created)


def look(
    path: Path,
    source: Source,
    name: str | None = None,
    *,
    method: str | None = None,
    backbone: str | None = None,
    size: int | None = None,
    seed: int | None = None,
    links: bool = True,
    listener: Listener | None = None,
) -> LessonPlan:
    """Read and check the photos of a lesson as `teach` would, and learn nothing."""
    learner = _open(path, method, backbone, seed, size) if path.exists() else make_learner(method, backbone, seed, size)
    name = name or _default_name(learner, source)
    pictures = _pictures(source, learner, name, listener or Listener(), links)
    return plan_of(pictures, _task(learner, pictures, name))


def learn_pictures(learner: Method, pictures: Pictures, name: str) -> Lesson:
    """Add a task to a method in memory, including its record."""
    check_new(learner, name, pictures.class_names)
    return _learn(learner, pictures, name, Listener())


def _pictures(source: Source, learner: Method, name: str, listener: Listener, links: bool) -> Pictures:
    """The images to learn. Known tasks and classes are rejected before any file is decoded."""
    return read_source(source, learner.image_shape[-1], partial(check_new, learner, name), listener, links=links)


def read_source(
    source: Source,
    size: int,
    on_classes: Callable[[tuple[str, ...]], None],
    listener: Listener,
    least_images: int = 5,
    least_classes: int = 2,
    links: bool = True,
) -> Pictures:
    """The images of a source; `on_classes` is told their classes, before any file is decoded, and may raise."""
    if isinstance(source, Path):
        limits: dict[str, Any] = {"least_images": least_images, "least_classes": least_classes}
        if is_zip(source):
            return read_zip(source, size, on_classes=on_classes, on_file=listener.on_file, **limits)
        return read_folder(source, size, links=links, on_classes=on_classes, on_file=listener.on_file, **limits)
    pictures = source(size)
    on_classes(pictures.class_names)
    return pictures


def _learn(
    learner: Method,
    pictures: Pictures,
    name: str,
    listener: Listener,
    checkpoints_of: Callable[[Method, Task], Checkpoints] | None = None,
) -> Lesson:
    task = _task(learner, pictures, name)
    train, validation = (resized_images(images, learner.image_shape) for images in (task.train, task.validation))
    task = replace(task, train=train, validation=validation)
    if listener.on_plan is not None:
        listener.on_plan(plan_of(pictures, task))
    started = time.perf_counter()
    checkpoints = checkpoints_of(learner, task) if checkpoints_of else None
    context = TrainingContext(listener.on_step, checkpoints, folds=FOLDS)
    with remembered_features(learner):
        learner.learn(task, context)
    if context.out_of_fold:
        record, accuracy_among_all, held_out = examine_folds(learner, task, pictures, context.out_of_fold[0])
    else:
        record, accuracy_among_all, held_out = examine(learner, task, pictures)
    learner.tasks[-1] = replace(learner.tasks[-1], record=record)
    return Lesson(
        task=name,
        class_names=task.class_names,
        record=record,
        skipped=pictures.skipped,
        seconds=time.perf_counter() - started,
        accuracy_among_all=accuracy_among_all,
        n_tasks=len(learner.tasks),
        n_classes=sum(learned.n_classes for learned in learner.tasks),
        capacity={group: used[-1] for group, used in learner.capacity().items()},
        created=False,
        held_out=held_out,
    )


def _task(learner: Method, pictures: Pictures, name: str) -> Task:
    """Methods fitted in closed form learn from all photos: held-out outputs come from cross-fitting."""
    return pictures.task(name, validation=0.0 if isinstance(learner, FrozenMethod) else 0.2, seed=learner.seed)


def plan_of(pictures: Pictures, task: Task) -> LessonPlan:
    """What will be learned, and what was noticed about the photos."""
    noticed = hints(pictures.images, pictures.class_names, pictures.file_names, pictures.sizes)
    n_train, n_validation = len(task.train), len(task.validation)
    return LessonPlan(task.name, task.class_names, n_train, n_validation, pictures.skipped, noticed, pictures.n_outside)


def make_learner(method: str | None, backbone: str | None, seed: int | None = None, size: int | None = None) -> Method:
    """An untrained model, with the defaults of `new_method` for None."""
    options = {"method": method, "backbone": backbone, "seed": seed, "size": size}
    chosen: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    return create.new_method(**chosen)


def check_new(learner: Method, name: str, class_names: tuple[str, ...]) -> None:
    """Raise if a name cannot be used, or if the model already knows the task name or one of the classes."""
    check_names(name, class_names)
    tasks = {task.name for task in learner.tasks}
    if name in tasks:
        raise UserError(
            f"This model has a task '{name}' already. Give the new one another name with --name, or remove the old one "
            f"with: clom forget MODEL '{name}'"
        )
    task_of = {known: task.name for task in learner.tasks for known in task.class_names}
    again = [f"'{known}' (task '{task_of[known]}')" for known in class_names if known in task_of]
    if again:
        raise UserError(
            f"This model knows these classes already: {', '.join(again)}. Rename or remove their folders; or, to learn "
            "them anew, remove the task they belong to with: clom forget MODEL TASK"
        )


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of killed processes. The caller must hold the lock."""
    remove_temporary_files(path.resolve())


def _open(path: Path, method: str | None, backbone: str | None, seed: int | None, size: int | None) -> Method:
    """Load the model at `path`; raise if it contradicts the given options."""
    learner = load_model(path)
    advice = "Leave the option out, or choose another file for a new model."
    if method is not None and method != learner.name:
        raise UserError(f"{path} is a model of the method {learner.name}, not {method}. {advice}")
    if seed is not None and seed != learner.seed:
        raise UserError(f"{path} was made with seed {learner.seed}, not {seed}. {advice}")
    if size is not None and size != learner.image_shape[-1]:
        raise UserError(f"{path} is for photos of {learner.image_shape[-1]} pixels, not {size}. {advice}")
    if backbone is not None:
        wanted = create.new_method(method=learner.name, backbone=backbone).net_settings.kind
        if wanted != learner.net_settings.kind:
            raise UserError(f"{path} has the backbone {learner.net_settings.kind}, not {wanted}. {advice}")
    return learner


def _default_name(learner: Method, source: Source) -> str:
    """The folder's name; for generic names such as `flowers/train`, that of its parent."""
    if not isinstance(source, Path):
        return f"task {len(learner.tasks) + 1}"
    place = source.resolve().with_suffix("") if is_zip(source) else source.resolve()
    names = [folder.name for folder in (place, place.parent) if folder.name]
    return next((name for name in names if name.lower() not in _GENERIC_NAMES), place.name or "photos")
