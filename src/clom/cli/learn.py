"""`clom learn`: teach a model a folder of photos.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from clom.cli.options import Device

if TYPE_CHECKING:
    from clom.data.folders import Skipped
    from clom.photos.teach import Lesson, LessonPlan

_POOR = 0.7  # a validation accuracy below which advice is due
_MOST_LISTED = 20


def learn_command(
    model: Path,
    folder: Path,
    *,
    name: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Teach a model the classes of a folder, as one new task. What it knew before stays as it is, to the last bit.

    The photos are not needed again. The model file is replaced at the very end, in one piece: stopping is always safe.

    Parameters
    ----------
    model
        The model file; it is made if it is not there.
    folder
        A folder with one folder of photos for each class, at least five photos in each.
    name
        What to call the task; by default the folder's name.
    method
        For a new model: clom (the default), ncm (nearest class mean) or slda (streaming discriminant analysis).
    backbone
        For a new model: efficientnet-lite0 (pretrained, the default) or resnet-18 (learns from your photos alone).
    seed
        For a new model: decides everything random; 0 by default.
    threads
        Threads to compute with; by default one per core.
    """
    from clom import machine
    from clom.cli.display import LessonDisplay
    from clom.photos.teach import Listener, teach

    machine.tune_process(threads)
    console = Console()
    shown: list[LessonDisplay] = []

    def on_plan(plan: LessonPlan) -> None:
        reading.done()
        _show_plan(console, model, plan)
        shown.append(LessonDisplay(console, plan.task))
        shown[0].__enter__()

    reading = _Reading(console)
    listener = Listener(reading, on_plan, lambda step: shown[0].step(step))
    try:
        lesson = teach(
            model,
            folder,
            name,
            method=method,
            backbone=backbone,
            seed=seed,
            listener=listener,
            device=machine.choose_device(device),
        )
    finally:
        reading.done()
        for display in shown:
            display.__exit__()
    show_lesson(console, model, lesson)


class _Reading:
    """Tells now and then how many files were read, if there are many."""

    def __init__(self, console: Console, pause: float = 2.0) -> None:
        self._console, self._pause, self._last = console, pause, time.monotonic()
        self._status = console.status("Reading photos ...") if console.is_terminal else None
        if self._status:
            self._status.start()

    def __call__(self, done: int, total: int) -> None:
        if self._status:
            self._status.update(f"Reading photos ... {done} of {total}")
        elif time.monotonic() - self._last > self._pause:
            self._last = time.monotonic()
            self._console.print(f"Read {done} of {total} photos.", highlight=False)

    def done(self) -> None:
        if self._status:
            self._status.stop()


def _show_plan(console: Console, model: Path, plan: LessonPlan) -> None:
    say(
        console,
        f"'{plan.task}': {len(plan.class_names)} classes, {plan.n_train + plan.n_validation} photos; "
        f"{plan.n_train} to learn from, {plan.n_validation} held out to check it.",
    )
    show_skipped(console, plan.skipped)
    say(console, f"Until it is learned, {model} stays as it is.")


def show_skipped(console: Console, skipped: Sequence[Skipped]) -> None:
    """What gave no picture, and why."""
    from clom.data.folders import readable

    if not skipped:
        return
    say(console, f"Skipped {len(skipped)} {'file' if len(skipped) == 1 else 'files'}:")
    for file in skipped[:_MOST_LISTED]:
        say(console, f"  {readable(str(file.path))}: {file.reason}")
    if len(skipped) > _MOST_LISTED:
        say(console, f"  and {len(skipped) - _MOST_LISTED} more")


def show_lesson(console: Console, model: Path, lesson: Lesson) -> None:
    from clom.cli.display import duration

    record = lesson.record
    say(console, f"Learned '{lesson.task}' in {duration(lesson.seconds)}: {', '.join(lesson.class_names)}.")
    all_classes = f"; {lesson.accuracy_among_all:.1%} with all {lesson.n_classes} classes of the model to choose from"
    say(
        console,
        f"Validation accuracy {record.accuracy:.1%} of {sum(record.validation_images)} held-out photos"
        f"{all_classes if lesson.n_tasks > 1 else ''}.",
    )
    if record.accuracy < _POOR:
        say(console, "That is not much. More photos of each class help most; so does removing wrongly sorted ones.")
    if lesson.capacity:
        used = ", ".join(f"{group} {share:.0%}" for group, share in lesson.capacity.items())
        say(console, f"Capacity in use after {lesson.n_tasks} tasks: {used}.")
    if lesson.full:
        say(
            console,
            f"Nearly full: {', '.join(lesson.full)}. Further tasks reuse what is there and add little; `clom forget` "
            "frees the units of a task that is not needed any more.",
        )
    say(console, "Next:")
    say(console, f"  clom predict {model} PHOTO ...    what is on other photos")
    say(console, f"  clom learn {model} FOLDER         more classes; the photos of these are not needed again")
    say(console, f"  clom inspect {model}              what it knows")


def say(console: Console, text: str) -> None:
    """A line as it is: no markup, no colours of numbers, no breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
