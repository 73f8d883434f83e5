"""A lesson from beginning to end, as the process that learns tells it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clom.serve.images.decoder_pool import Unreadable
from clom.serve.lessons.job import Job
from clom.serve.lessons.stored_lesson import Assignment

ASSIGNMENT = Assignment("7", "fruit", ("apple", "pear"), (5, 6), (Unreadable("cat.txt", "no image"),))


def told(*events: dict[str, Any]) -> Job:
    job = Job(ASSIGNMENT)
    for event in events:
        job.note(event)
    return job


PLAN = {"event": "plan"}


def test_states_follow_the_events() -> None:
    assert told().state == "preparing"
    assert told(PLAN).state == "learning"
    saved = told(PLAN, {"event": "step", "phase": "features", "share": 0.5}, {"event": "saved"})
    assert (saved.state, saved.share, saved.saved, saved.over) == ("checking", 1.0, True, False)
    done = told(PLAN, {"event": "saved"}, {"event": "done", "lesson": {"accuracy": 1.0}, "checks": [{"task": "a"}]})
    assert (done.lesson, done.checks) == ({"accuracy": 1.0}, [{"task": "a"}])
    assert told({"event": "problem", "text": "no room"}).problem == "no room"


def test_the_time_left_follows_from_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lesson that is resumed begins somewhere: what earlier processes did says nothing about the pace."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert told().seconds_left is None
    job = told(PLAN)
    assert job.seconds_left is None
    job.note({"event": "step", "phase": "features", "share": 0.5})
    assert job.seconds_left is None
    now = 110.0
    job.note({"event": "step", "phase": "features", "share": 0.75})
    assert job.seconds_left == pytest.approx(10)
    job.state = "done"
    assert job.seconds_left is None


def test_what_the_page_gets() -> None:
    told_back = told({"event": "step", "phase": "head", "share": 0.123456}).to_json()
    assert told_back["classes"] == [{"name": "apple", "pictures": 5}, {"name": "pear", "pictures": 6}]
    assert told_back["unreadable"] == [{"file": "cat.txt", "reason": "no image"}]
    assert (told_back["id"], told_back["task"], told_back["progress"]) == ("7", "fruit", 0.1235)
