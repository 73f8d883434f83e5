"""One lesson and how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from clom.serve.lessons.stored_lesson import Assignment

State = Literal["preparing", "learning", "checking", "done", "failed", "cancelled", "interrupted"]
RUNNING = ("preparing", "learning", "checking")
WAITING = ("failed", "interrupted")
"""Ended, but its pictures are kept: it can go on or be given up."""
_LEAST_SHARE = 0.01  # of a lesson, before its pace tells how long the rest takes


@dataclass(eq=False)
class Job:
    """One lesson and how far it is."""

    assignment: Assignment
    state: State = "preparing"
    phase: str = ""
    share: float = 0.0
    problem: str = ""
    lesson: dict[str, Any] | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    first_step: tuple[float, float] | None = None
    """The share that was done, and the time, when the first step was reported: a resumed lesson does not begin at 0."""
    saved: bool = False
    revision: int = 0

    @property
    def over(self) -> bool:
        return self.state not in RUNNING

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; None before that can be told."""
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
        """Take in what the process that learns tells."""
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
