"""The low-priority training process of the server. It reports events as lines of JSON.

It exits when its standard input is closed, so that it never outlives the server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clom.errors import UserError
from clom.plugins import load_plugin

if TYPE_CHECKING:
    import torch

    from clom.photos.changes.add import Added
    from clom.photos.examination import HeldOut
    from clom.serve.lessons.stored_lesson import StoredLesson

SECONDS_BETWEEN_STEPS = 0.2
_MOST_PAIRS, _MOST_THUMBNAILS = 8, 6


def main() -> None:
    purpose, model = sys.argv[1], Path(sys.argv[2])
    threads, niceness = (int(word) for word in sys.argv[3:5])
    threading.Thread(target=_end_with_input, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(niceness)
    import torch

    from clom import machine

    machine.tune_process(threads)
    try:
        for plugin in sys.argv[6:]:
            load_plugin(plugin)
        inspect(model) if purpose == "inspect" else learn(model, torch.device(sys.argv[5]))
    except UserError as problem:
        tell("problem", text=str(problem))


def learn(model: Path, device: torch.device | None = None) -> None:
    """Teach the model the stored lesson, then verify that the earlier tasks are unchanged."""
    from clom.learning.progress import Progress
    from clom.photos.changes.add import add_photos
    from clom.photos.teach import LessonPlan, Listener, teach
    from clom.serve.lessons.stored_lesson import StoredLesson

    last = 0.0

    def on_plan(plan: LessonPlan) -> None:
        tell("plan", n_train=plan.n_train, n_validation=plan.n_validation)

    def on_step(step: Progress) -> None:
        nonlocal last
        if time.monotonic() - last < SECONDS_BETWEEN_STEPS and step.done < step.total:
            return
        last = time.monotonic()
        tell("step", phase=step.phase, share=step.share, epoch=step.epoch, epochs=step.epochs)

    stored = StoredLesson(model)
    assignment = stored.read()
    if assignment is None:
        raise UserError("The pictures of this lesson are gone.")
    listener = Listener(on_plan=on_plan, on_step=on_step)
    if assignment.adds:
        started = time.monotonic()
        added = add_photos(model, lambda _: stored.pictures(), listener=listener, device=device)
        tell("saved")
        tell("done", lesson=_about_added(added, time.monotonic() - started), checks=_checks(stored))
        return
    lesson = teach(model, lambda _: stored.pictures(), assignment.name, listener=listener, device=device)
    tell("saved")
    record = lesson.record.model_dump(mode="json", exclude={"belonging"})
    tell(
        "done",
        lesson={
            "seconds": lesson.seconds,
            "accuracy": lesson.record.accuracy,
            "accuracy_among_all": lesson.accuracy_among_all,
            "n_tasks": lesson.n_tasks,
            "n_classes": lesson.n_classes,
            "nearly_full": lesson.full,
            "record": record,
            "mistakes": _about_mistakes(lesson.held_out),
        },
        checks=_checks(stored),
    )


def _checks(stored: StoredLesson) -> list[dict[str, Any]]:
    """Whether each task is bit-identical to the one before the lesson."""
    from clom.photos.verify import verify

    return [asdict(check) for check in verify(stored.model, stored.before)] if stored.before.exists() else []


def _about_mistakes(held: HeldOut) -> dict[str, Any]:
    """The confusions, and thumbnails of the photos of the most frequent ones."""
    from clom.photos.mistakes import thumbnail

    found = held.mistakes
    pairs = [
        {
            "truth": pair.truth,
            "answer": pair.answer,
            "count": len(pair.photos),
            "pictures": [thumbnail(held.pixels[row].cpu()) for row in pair.photos[:_MOST_THUMBNAILS]],
        }
        for pair in found.pairs[:_MOST_PAIRS]
    ]
    return {"classes": found.classes, "counts": found.counts, "photos": found.n_photos, "pairs": pairs}


def _about_added(added: Added, seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "pictures": dict(added.photos),
        "changed": added.changed,
        "shared": added.shared,
        "right_before": added.right_before,
        "right_after": added.right_after,
        "right_left_out": added.right_left_out,
    }


def inspect(model: Path) -> None:
    """Verify the fingerprints and compute the AUC between tasks."""
    from clom.photos.verify import verify
    from clom.serve.lessons.separation import separation
    from clom.storage.model_file import load_model

    checks = [asdict(check) for check in verify(model)]
    tell("done", checks=checks, separation=separation(load_model(model)))


def tell(event: str, **content: Any) -> None:
    print(json.dumps({"event": event, **content}), flush=True)


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # unbuffered: the lock of sys.stdin would block the exit
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
