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

SECONDS_BETWEEN_STEPS = 0.2


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
    from clom.photos.teach import LessonPlan, Listener, teach
    from clom.photos.verify import verify
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
    lesson = teach(model, lambda _: stored.pictures(), assignment.name, listener=listener, device=device)
    tell("saved")
    checks = [asdict(check) for check in verify(model, stored.before)] if stored.before.exists() else []
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
        },
        checks=checks,
    )


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
