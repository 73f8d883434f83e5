"""`clom learn`: teach a model the classes in a folder of photos.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.checks import is_class_folder
from clom.cli.console import Console
from clom.cli.options import Device, Links
from clom.errors import UserError
from clom.ood.rejection import FALSE_REJECTION

if TYPE_CHECKING:
    import torch

    from clom.cli.display import LessonDisplay
    from clom.data.folders import Skipped
    from clom.learning.progress import Progress
    from clom.ood.rejection import HeldOutScores
    from clom.photos.changes.add import Added
    from clom.photos.mistakes import Mistakes
    from clom.photos.teach import Lesson, LessonPlan, Listener

_POOR = 0.7  # validation accuracy below which advice is printed
_MOST_LISTED = 20
_MOST_PAIRS = 3
_CONTRADICTIONS = (
    ("add", "name"),
    ("add", "mistakes"),
    ("watch", "add"),
    ("watch", "check"),
    ("watch", "mistakes"),
    ("check", "mistakes"),
)


def learn_command(
    model: Path,
    folder: Path,
    *,
    name: str | None = None,
    add: bool = False,
    watch: bool = False,
    check: bool = False,
    mistakes: Path | None = None,
    method: str | None = None,
    backbone: str | None = None,
    size: int | None = None,
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
        A folder with one subfolder per class, each with at least five photos; or a zip file of such a folder.
    name
        Name of the task; by default the folder's name.
    add
        The photos are more photos of classes that the model knows. These classes change, the others do not.
    watch
        Keep watching the folder, which may still be empty: learn new classes and add photos as they appear.
    check
        Only look at the photos: report copies, contradictions, blur, size and balance, and learn nothing.
    mistakes
        Write the confusion matrix and the confused held-out photos to this HTML file.
    method
        For a new model: experts (the default), slda, ncm, ranpac, klda, or clom (adapters trained for each task).
    backbone
        For a new model: efficientnet-lite0 (pretrained, the default), efficientnet-lite2, your own FILE.onnx or
        package.module:Network, or with --method clom resnet-18 (trained from scratch).
    size
        For a new model: the side in pixels to which photos are reduced, 160 by default; 224 is better and takes twice
        the time.
    seed
        For a new model: random seed, 0 by default.
    threads
        Number of CPU threads; by default one per core.
    """
    if not watch:
        is_class_folder(None, folder)
    from clom import machine
    from clom.photos.mistakes_page import check_page
    from clom.photos.teach import look, teach

    _check_options(add=add, watch=watch, check=check, name=name, mistakes=mistakes)
    if mistakes is not None:
        check_page(mistakes)
    machine.tune_process(threads)
    console = Console()
    options: dict[str, Any] = {"method": method, "backbone": backbone, "size": size, "seed": seed}
    chosen = machine.choose_device(device)
    if watch:
        _watch(console, model, folder, name, chosen, options)
        return
    with LessonShown(console, model) as shown:
        if check:
            from clom.photos.changes.add import look_at_more

            seen = shown.listener
            plan = (
                look_at_more(model, folder, seen)
                if add
                else look(model, folder, name, links=links, listener=seen, **options)
            )
        elif add:
            from clom.photos.changes.add import add_photos

            added = add_photos(model, folder, links=links, listener=shown.listener, device=chosen)
        else:
            lesson = teach(model, folder, name, links=links, listener=shown.listener, device=chosen, **options)
    if check:
        show_plan(console, plan)
        say(console, "Nothing was learned: this was a check." if plan.hints else "No problems found.")
    elif add:
        show_added(console, added)
    else:
        show_lesson(console, model, lesson)
        if mistakes is not None:
            _write_mistakes(console, mistakes, lesson)


def _watch(
    console: Console, model: Path, folder: Path, name: str | None, device: torch.device, options: Mapping[str, Any]
) -> None:
    from clom.cli.watch_folder import keep_watching
    from clom.photos.changes.add import Added
    from clom.photos.watch import FolderWatch

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder.")
    lessons: list[LessonShown] = []

    def listener() -> Listener:
        lessons.append(LessonShown(console, model))
        return lessons[-1].listener

    def show(found: Lesson | Added | UserError) -> None:
        lessons.pop().__exit__()
        if isinstance(found, UserError):
            say(console, str(found))
        elif isinstance(found, Added):
            show_added(console, found)
        else:
            show_lesson(console, model, found)

    say(console, f"Watching {folder}. Press Ctrl-C to stop; {model} is complete after each lesson.")
    keep_watching(FolderWatch(model, folder, name, options, device), partial(say, console), listener, show)


def _check_options(**given: Any) -> None:
    """Refuse options that contradict each other."""
    used = [name for name, value in given.items() if value not in (None, False)]
    for one, other in _CONTRADICTIONS:
        if one in used and other in used:
            raise UserError(f"--{one} and --{other} cannot be used together.")


class LessonShown:
    """Shows what a lesson's listener hears. A context manager, so that bars are always removed."""

    def __init__(self, console: Console, model: Path) -> None:
        from clom.photos.teach import Listener

        self.console, self.model = console, model
        self._reading = _Reading(console)
        self._display: LessonDisplay | None = None
        self.listener = Listener(self._reading, self._on_plan, self._on_step)

    def __enter__(self) -> LessonShown:
        return self

    def __exit__(self, *problem: object) -> None:
        self._reading.done()
        if self._display is not None:
            self._display.__exit__()

    def _on_plan(self, plan: LessonPlan) -> None:
        from clom.cli.display import LessonDisplay

        self._reading.done()
        show_plan(self.console, plan)
        say(self.console, f"{self.model} stays unchanged until training is complete.")
        self._display = LessonDisplay(self.console, plan.task)
        self._display.__enter__()

    def _on_step(self, step: Progress) -> None:
        if self._display is not None:
            self._display.step(step)


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


def show_plan(console: Console, plan: LessonPlan) -> None:
    """What will be learned from, and what was noticed about it."""
    n_classes = len(plan.class_names)
    say(
        console,
        f"'{plan.task}': {n_classes} {'class' if n_classes == 1 else 'classes'}, {plan.n_train + plan.n_validation} "
        f"photos; {_use_of(plan)}.",
    )
    show_skipped(console, plan.skipped)
    show_links(console, plan.n_outside)
    for hint in plan.hints:
        say(console, f"Hint: {hint.text}")


def _use_of(plan: LessonPlan) -> str:
    if not plan.n_validation:
        return "all are learned from, and accuracy is measured by cross-validation"
    return f"{plan.n_train} for training, {plan.n_validation} held out for validation"


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
    show_rejection(console, record.own_scores)
    show_confused(console, lesson.held_out.mistakes)
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
    say(console, f"  clom undo {model}                 take this lesson back")


def show_rejection(console: Console, scores: HeldOutScores) -> None:
    """How surely the default rejection rate holds."""
    low, high = scores.expected_rejection(FALSE_REJECTION)
    say(
        console,
        f"Of new photos of these classes, about {FALSE_REJECTION:.0%} will be rejected as unknown "
        f"(between {low:.1%} and {high:.1%}, estimated from {len(scores.ascending)} photos).",
    )


def show_added(console: Console, added: Added) -> None:
    """What more photos changed."""
    photos = ", ".join(f"{name} {count}" for name, count in added.photos.items())
    say(console, f"Added photos: {photos}.")
    right, total = added.right_before, len(added.truths)
    left_out = added.right_left_out
    now = f"{added.right_after} are now" if left_out is None else f"{left_out} are now, each by a fit without it"
    say(console, f"{right} of {total} were answered right before, {now}.")
    say(console, f"Changed: {', '.join(added.changed)}.")
    if added.unchanged:
        say(console, f"Bit-identical: {', '.join(added.unchanged)}.")
    if added.shared:
        say(console, added.shared)


def show_confused(console: Console, mistakes: Mistakes) -> None:
    """The most frequent mistakes in a line."""
    pairs = [
        f"{pair.truth} {'rejected' if pair.answer is None else f'taken for {pair.answer}'} {len(pair.photos)}x"
        for pair in mistakes.pairs[:_MOST_PAIRS]
    ]
    if pairs:
        more = len(mistakes.pairs) - len(pairs)
        say(console, f"Most confused: {', '.join(pairs)}{f', and {more} more' if more else ''}.")


def _write_mistakes(console: Console, path: Path, lesson: Lesson) -> None:
    from clom.photos.mistakes import thumbnail
    from clom.photos.mistakes_page import write_mistakes

    held = lesson.held_out
    title = f"Mistakes on the held-out photos of {lesson.task}"
    write_mistakes(path, title, held.mistakes, list(held.files), lambda row: thumbnail(held.pixels[row]))
    wrong, photos = held.mistakes.n_mistakes, held.mistakes.n_photos
    say(console, f"Wrote the {wrong} mistakes on {photos} held-out photos to {path}.")


def say(console: Console, text: str) -> None:
    """Print a line without wrapping."""
    console.print(text, soft_wrap=True)
