"""One lesson and how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from clom.serve.lessons.stored_images import Assignment

State = Literal["preparing", "learning", "checking", "done", "failed", "cancelled", "interrupted"]
RUNNING = ("preparing", "learning", "checking")
WAITING = ("failed", "interrupted")
"""Ended, but its pictures are kept: it can go on or be given up."""


@dataclass(eq=False)
class Job:
    """One lesson and how far it is."""

    assignment: Assignment
    state: State = "preparing"
    phase: str = ""
    share: float = 0.0
    problem: str = ""
    estimate: float | None = None
    lesson: dict[str, Any] | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    learning_since: float | None = None
    saved: bool = False
    revision: int = 0

    @property
    def over(self) -> bool:
        return self.state not in RUNNING

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; by the estimate as long as there is none."""
        if self.over:
            return None
        passed = 0.0 if self.learning_since is None else time.monotonic() - self.learning_since
        if self.share > 0.1:
            return max(0.0, passed / self.share * (1 - self.share))
        return None if self.estimate is None else max(0.0, self.estimate - passed)

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
            self.estimate, self.state, self.learning_since = event["seconds"], "learning", time.monotonic()
        elif kind == "step":
            self.phase, self.share = event["phase"], event["share"]
        elif kind == "saved":
            self.state, self.share, self.saved = "checking", 1.0, True
        elif kind == "done":
            self.lesson, self.checks = event["lesson"], event["checks"]
        elif kind == "problem":
            self.problem = event["text"]
