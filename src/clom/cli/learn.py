"""`clom learn`: teach a model the classes in a folder of photos.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.options import ClassFolder, Device, Links

if TYPE_CHECKING:
    from clom.data.folders import Skipped
    from clom.photos.teach import Lesson, LessonPlan

_POOR = 0.7  # validation accuracy below which advice is printed
_MOST_LISTED = 20


def learn_command(
    model: Path,
    folder: ClassFolder,
    *,
    name: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
    links: Links = True,
) -> None:
    """Teach a model the classes in a folder as one new task. Its outputs for earlier tasks stay bit-identical.

    The photos are not needed afterwards. The model file is replaced atomically at the end, so interrupting is safe.

    Parameters
    ----------
    model
        The model file; created if it does not exist.
    folder
        A folder with one subfolder per class, each with at least five photos.
    name
        Name of the task; by default the folder's name.
    method
        For a new model: clom (the default), ncm (nearest class mean) or slda (streaming discriminant analysis).
    backbone
        For a new model: efficientnet-lite0 (pretrained, the default) or resnet-18 (trained from scratch).
    seed
        For a new model: random seed, 0 by default.
    threads
        Number of CPU threads; by default one per core.
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
            links=links,
            listener=listener,
            device=machine.choose_device(device),
        )
    finally:
        reading.done()
        for display in shown:
            display.__exit__()
    show_lesson(console, model, lesson)


class _Reading:
    """Shows how many files have been read so far."""

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
        f"{plan.n_train} for training, {plan.n_validation} held out for validation.",
    )
    show_skipped(console, plan.skipped)
    show_links(console, plan.n_outside)
    say(console, f"{model} stays unchanged until training is complete.")


def show_skipped(console: Console, skipped: Sequence[Skipped]) -> None:
    """List the files that could not be read, with the reasons."""
    from clom.data.folders import readable

    if not skipped:
        return
    say(console, f"Skipped {len(skipped)} {'file' if len(skipped) == 1 else 'files'}:")
    for file in skipped[:_MOST_LISTED]:
        say(console, f"  {readable(str(file.path))}: {file.reason}")
    if len(skipped) > _MOST_LISTED:
        say(console, f"  and {len(skipped) - _MOST_LISTED} more")


def show_links(console: Console, n_outside: int) -> None:
    """Say how many files were read from outside of the folder that was named."""
    if n_outside:
        files = "1 photo is a link to a file" if n_outside == 1 else f"{n_outside} photos are links to files"
        say(console, f"{files} outside the folder; --no-links skips such links.")


def show_lesson(console: Console, model: Path, lesson: Lesson) -> None:
    from clom.cli.display import duration

    record = lesson.record
    say(console, f"Learned '{lesson.task}' in {duration(lesson.seconds)}: {', '.join(lesson.class_names)}.")
    all_classes = f"; {lesson.accuracy_among_all:.1%} among all {lesson.n_classes} classes of the model"
    say(
        console,
        f"Validation accuracy {record.accuracy:.1%} on {sum(record.validation_images)} held-out photos"
        f"{all_classes if lesson.n_tasks > 1 else ''}.",
    )
    if record.accuracy < _POOR:
        say(console, "This is low. Add more photos per class, and remove mislabelled ones.")
    if lesson.capacity:
        used = ", ".join(f"{group} {share:.0%}" for group, share in lesson.capacity.items())
        say(console, f"Capacity in use after {lesson.n_tasks} {'task' if lesson.n_tasks == 1 else 'tasks'}: {used}.")
    if lesson.full:
        say(
            console,
            f"Nearly full: {', '.join(lesson.full)}. Further tasks reuse existing units and can add few; `clom forget` "
            "frees the units of a task that is no longer needed.",
        )
    say(console, "Next:")
    say(console, f"  clom predict {model} PHOTO ...    classify other photos")
    say(console, f"  clom learn {model} FOLDER         add more classes; old photos are not needed")
    say(console, f"  clom inspect {model}              show its tasks and classes")


def say(console: Console, text: str) -> None:
    """Print a line without wrapping."""
    console.print(text, soft_wrap=True)
