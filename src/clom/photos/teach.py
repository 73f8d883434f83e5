"""Add classes to a model file: from a folder (command line) or from images in memory (server)."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from clom.data.folders import Pictures, Skipped, read_folder
from clom.data.images import Images, resized_images
from clom.data.stream import Task
from clom.errors import UserError
from clom.files import FileState, file_state, remove_temporary_files
from clom.learning.context import Checkpoints, TrainingContext
from clom.learning.logit_scale import fit_logit_scale
from clom.learning.progress import OnProgress, ignore
from clom.locks import Lock
from clom.methods.families.base import Method, move
from clom.methods.families.task_record import TaskRecord, now
from clom.photos import presets as create
from clom.storage.checkpoints import checkpoints_for_model, lesson_folder
from clom.storage.fingerprint import fingerprint
from clom.storage.model_file import load_model, save_model
from clom.untrusted_text import check_names

Source = Path | Callable[[int], Pictures]
"""A folder with one sub-folder of photos per class, or a function from an image size to square images of that size."""

NEARLY_FULL = 0.95
_GENERIC_NAMES = {"train", "training", "images", "photos", "pictures", "data"}


@dataclass(frozen=True)
class LessonPlan:
    """Summary of a task before training."""

    task: str
    class_names: tuple[str, ...]
    n_train: int
    n_validation: int
    skipped: tuple[Skipped, ...]
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
    seed: int | None = None,
    links: bool = True,
    listener: Listener | None = None,
    device: torch.device | None = None,
) -> Lesson:
    """Add the classes of `source` as one task to the model at `path`, which is created if it does not exist.

    The file is replaced atomically at the end; the same call resumes an interrupted training. `method`, `backbone` and
    `seed` configure a new model and must match an existing one. Without `links`, pictures that are links to files
    outside the folder are skipped. A lock admits one process at a time.
    """
    listener = listener or Listener()
    with Lock(path):
        remove_leftovers(path)
        before = file_state(path)
        created = before is None
        learner = make_learner(method, backbone, seed) if created else _open(path, method, backbone, seed)
        move(learner, device or torch.device("cpu"))
        name = name or _default_name(learner, source)
        pictures = _pictures(source, learner, name, listener, links)
        lesson = _learn(learner, pictures, name, listener, partial(checkpoints_for_model, path))
        save_unless_replaced(path, learner, before)
        shutil.rmtree(lesson_folder(path), ignore_errors=True)
    return replace(lesson, created=created)


def save_unless_replaced(path: Path, learner: Method, before: FileState | None) -> None:
    """Save to `path`, unless another program changed that file since it was in the state `before`: then both are kept,
    this one under another name, and the error tells it. The lock keeps other commands away, but not every program."""
    target = path.resolve()  # a link stays a link
    if file_state(target) in (before, None):
        save_model(target, learner)
        return
    names = (target.with_name(f"{target.stem}-{number}{target.suffix}") for number in itertools.count(2))
    other = next(name for name in names if not name.exists())
    save_model(other, learner)
    raise UserError(
        f"Another program changed {path} in the meantime. That file is left as it is; the result of this command is in "
        f"{other}."
    )


def learn_pictures(learner: Method, pictures: Pictures, name: str) -> Lesson:
    """Add a task to a method in memory, including its record."""
    check_new(learner, name, pictures.class_names)
    return _learn(learner, pictures, name, Listener())


def _pictures(source: Source, learner: Method, name: str, listener: Listener, links: bool) -> Pictures:
    """The images to learn. Known tasks and classes are rejected before any file is decoded."""
    size, check = learner.image_shape[-1], partial(check_new, learner, name)
    if isinstance(source, Path):
        return read_folder(source, size, links=links, on_classes=check, on_file=listener.on_file)
    pictures = source(size)
    check(pictures.class_names)
    return pictures


def _learn(
    learner: Method,
    pictures: Pictures,
    name: str,
    listener: Listener,
    checkpoints_of: Callable[[Method, Task], Checkpoints] | None = None,
) -> Lesson:
    task = pictures.task(name, seed=learner.seed)
    train, validation = (resized_images(images, learner.image_shape) for images in (task.train, task.validation))
    task = replace(task, train=train, validation=validation)
    if listener.on_plan is not None:
        left_out = pictures.skipped, pictures.n_outside
        listener.on_plan(LessonPlan(name, task.class_names, len(train), len(validation), *left_out))
    started = time.perf_counter()
    learner.learn(task, TrainingContext(listener.on_step, checkpoints_of(learner, task) if checkpoints_of else None))
    record, accuracy_among_all = examine(learner, task)
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
    )


@torch.no_grad()
def examine(learner: Method, task: Task) -> tuple[TaskRecord, float]:
    """The record of the task that was just learned, and its class-incremental accuracy."""
    number, held = len(learner.tasks) - 1, task.validation
    raw, belonging = learner.blocks_and_belonging(held.pixels)
    blocks = learner.calibration(raw)
    scores, start = torch.cat(blocks, 1), sum(block.shape[1] for block in blocks[:number])
    within, overall = blocks[number].argmax(1) == held.labels, scores.argmax(1) == start + held.labels
    record = TaskRecord(
        learned=now(),
        images=_counts(task.train, task.n_classes),
        validation_images=_counts(held, task.n_classes),
        accuracy=float(within.double().mean()),
        logit_scale=fit_logit_scale(scores, start + held.labels),
        task_logit_scale=fit_logit_scale(raw[number], held.labels),
        belonging=tuple(sorted(belonging[:, number].tolist())),
        fingerprint=fingerprint(learner, number),
    )
    return record, float(overall.double().mean())


def make_learner(method: str | None, backbone: str | None, seed: int | None) -> Method:
    """An untrained model, with the defaults of `new_method` for None."""
    chosen: dict[str, str] = {key: value for key, value in (("method", method), ("backbone", backbone)) if value}
    return create.new_method(**chosen, seed=seed or 0)


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


def _open(path: Path, method: str | None, backbone: str | None, seed: int | None) -> Method:
    """Load the model at `path`; raise if it contradicts the given options."""
    learner = load_model(path)
    advice = "Leave the option out, or choose another file for a new model."
    if method is not None and method != learner.name:
        raise UserError(f"{path} is a model of the method {learner.name}, not {method}. {advice}")
    if seed is not None and seed != learner.seed:
        raise UserError(f"{path} was made with seed {learner.seed}, not {seed}. {advice}")
    if backbone is not None:
        wanted = create.new_method(method=learner.name, backbone=backbone).net_settings.kind
        if wanted != learner.net_settings.kind:
            raise UserError(f"{path} has the backbone {learner.net_settings.kind}, not {wanted}. {advice}")
    return learner


def _default_name(learner: Method, source: Source) -> str:
    """The folder's name; for generic names such as `flowers/train`, that of its parent."""
    if not isinstance(source, Path):
        return f"task {len(learner.tasks) + 1}"
    place = source.resolve()
    names = [folder.name for folder in (place, place.parent) if folder.name]
    return next((name for name in names if name.lower() not in _GENERIC_NAMES), place.name or "photos")


def _counts(images: Images, n_classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(images.labels, minlength=n_classes).tolist())
