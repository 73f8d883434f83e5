"""A training job and its progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from clom.serve.lessons.stored_lesson import Assignment

State = Literal["checked", "preparing", "learning", "checking", "done", "failed", "cancelled", "interrupted"]
RUNNING = ("preparing", "learning", "checking")
WAITING = ("checked", "failed", "interrupted")
"""Its pictures are kept, and nothing happens: it can be resumed or cancelled. `checked`: it has not begun, since there
are hints on its pictures."""
_LEAST_SHARE = 0.01  # of the progress, before the remaining time is estimated


@dataclass(eq=False)
class Job:
    """A training job and its progress."""

    assignment: Assignment
    state: State = "preparing"
    phase: str = ""
    share: float = 0.0
    problem: str = ""
    lesson: dict[str, Any] | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    first_step: tuple[float, float] | None = None
    """Progress and time of the first reported step: a resumed job does not start at 0."""
    saved: bool = False
    revision: int = 0

    @property
    def over(self) -> bool:
        return self.state not in RUNNING

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the progress so far; None if unknown."""
        if self.over or self.first_step is None:
            return None
        share, since = self.first_step
        done = self.share - share
        return (time.monotonic() - since) / done * (1 - self.share) if done > _LEAST_SHARE else None

    def to_json(self) -> dict[str, Any]:
        plan = self.assignment
        return {
            "id": plan.id,
            "task": plan.name,
            "classes": [{"name": name, "pictures": n} for name, n in zip(plan.class_names, plan.counts, strict=True)],
            "adds": plan.adds,
            "hints": [{"kind": kind, "text": text} for kind, text in plan.hints],
            "unreadable": [{"file": file.file, "reason": file.reason} for file in plan.unreadable],
            "state": self.state,
            "phase": self.phase,
            "progress": round(self.share, 4),
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
            "problem": self.problem,
            "lesson": self.lesson,
            "checks": self.checks,
        }

    def note(self, event: dict[str, Any]) -> None:
        """Apply an event of the training process."""
        kind = event["event"]
        if kind == "plan":
            self.state = "learning"
        elif kind == "step":
            self.phase, self.share = event["phase"], event["share"]
            self.first_step = self.first_step or (self.share, time.monotonic())
        elif kind == "saved":
            self.state, self.share, self.saved = "checking", 1.0, True
        elif kind == "done":
            self.lesson, self.checks = event["lesson"], event["checks"]
        elif kind == "problem":
            self.problem = event["text"]
