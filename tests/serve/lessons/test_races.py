"""Requests that change which lesson there is, at the same time; and two servers on one model."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from clom.serve.answers.engine import Engine
from clom.serve.client import Client, Refused
from clom.serve.lessons import runner as running
from clom.serve.lessons.job import Job
from clom.serve.lessons.runner import Busy, LessonRunner
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson
from clom.serve.security import Access
from clom.storage.model_file import save_model
from serve.running import pictures, serving, slow_learner, wait_until, warm_model, write_pictures

FOUND = pictures("blue", "yellow")


def leave_lesson(path: Path, name: str = "cold") -> StoredLesson:
    """What a killed server leaves."""
    stored = StoredLesson(path)
    assignment = Assignment("abc", name, ("blue", "yellow"), (10, 10), ())
    stored.write(assignment, FOUND.images.pixels, FOUND.images.labels.tolist())
    return stored


async def begin(lessons: LessonRunner, name: str) -> Job:
    return await lessons.begin(name, ("blue", "yellow"), FOUND.images.pixels, FOUND.images.labels.tolist())


def test_cancelling_while_pictures_are_written_spares_the_next_lesson(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lesson is cancelled before its pictures are on the disk, and the second one begins."""
    path = tmp_path / "model.safetensors"
    save_model(path, slow_learner())
    go_on, really_write = threading.Event(), StoredLesson.write

    def slow_write(stored: StoredLesson, assignment: Assignment, *pixels: object) -> None:
        if assignment.name == "first":
            go_on.wait(5)
        really_write(stored, assignment, *pixels)  # type: ignore[arg-type]

    monkeypatch.setattr(StoredLesson, "write", slow_write)

    async def check() -> None:
        lessons = LessonRunner(Engine(path), niceness=0)
        first = asyncio.create_task(begin(lessons, "first"))
        await asyncio.sleep(0.05)
        assert lessons.current is not None
        cancelling = asyncio.create_task(lessons.cancel(lessons.current))
        await asyncio.sleep(0.2)
        second = asyncio.create_task(begin(lessons, "second"))
        await asyncio.sleep(0.2)
        go_on.set()
        await asyncio.wait([first, cancelling, second])
        job = await begin(lessons, "second") if second.exception() else second.result()
        stored = lessons.stored.read()
        assert stored is not None, "its pictures are gone"
        assert (stored.name, job.state) == ("second", "preparing")
        await lessons.stop()

    asyncio.run(check())


def test_cancelling_twice_spares_the_next_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = warm_model(tmp_path / "model.safetensors", slow_learner(epochs=1))
    leave_lesson(path)
    really_tidy, slow, go_on = LessonRunner._tidy, [False, True], threading.Event()

    def tidy(lessons: LessonRunner) -> None:
        if slow.pop(0) if slow else False:
            go_on.wait(3)
        really_tidy(lessons)

    monkeypatch.setattr(LessonRunner, "_tidy", tidy)

    async def check() -> None:
        lessons = LessonRunner(Engine(path), niceness=0)
        assert lessons.current is not None
        job = lessons.current
        assert job.state == "interrupted"
        first, second = (asyncio.create_task(lessons.cancel(job)) for _ in range(2))
        await first
        new = await begin(lessons, "new")
        go_on.set()
        await second
        assert lessons.stored.read() is not None, "its pictures are gone"
        assert new.state == "preparing"
        await lessons.stop()

    asyncio.run(check())


def test_a_cancelled_thread_is_waited_for() -> None:
    done = threading.Event()

    def work() -> None:
        done.wait(0.3)
        done.set()

    async def check() -> None:
        task = asyncio.create_task(running._in_thread(work))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert done.is_set()
        assert task.cancelled()

    asyncio.run(check())


def test_two_servers_of_one_model_do_not_touch_each_others_lessons(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, slow_learner())
    classes = {name: write_pictures(tmp_path, name) for name in ("blue", "yellow")}
    with serving(path) as (first, _):
        job = first.teach(classes, "cold")
        wait_until(lambda: first.job(job["id"])["progress"] > 0)
        with serving(path) as (second, _):
            assert second._json("GET", "/jobs")["jobs"] == [], "shown as interrupted"
            for action in (second.resume, second.cancel):
                with pytest.raises(Refused, match="no lesson"):
                    action(job["id"])
            with pytest.raises(Refused, match="Another server is teaching this model") as caught:
                second.teach(classes, "colder")
            assert caught.value.status == 409
            assert first.job(job["id"])["state"] == "learning"
            assert first.cancel(job["id"])["state"] == "cancelled"
            again = second.teach(classes, "colder")
            assert second.cancel(again["id"])["state"] == "cancelled"
    assert not list(tmp_path.glob(".*"))


def test_what_a_server_left_is_taken_over_by_another_one(tmp_path: Path) -> None:
    path = warm_model(tmp_path / "model.safetensors")

    async def check() -> None:
        lessons = LessonRunner(Engine(path))
        assert lessons.current is None
        leave_lesson(path)
        with pytest.raises(Busy, match="'cold' is not finished"):
            await begin(lessons, "new")
        assert [job.state for job in lessons.all] == ["interrupted"]
        other = LessonRunner(Engine(path))
        assert other.all == [], "it belongs to the first one"
        await lessons.stop()
        other.adopt()
        assert [job.state for job in other.all] == ["interrupted"]
        await other.stop()

    asyncio.run(check())


@pytest.mark.parametrize("name", ["cold", "warm"])
def test_a_read_only_server_changes_nothing(name: str, tmp_path: Path) -> None:
    """Not even the pictures of a lesson that was learned and not cleaned up."""
    path = warm_model(tmp_path / "model.safetensors")
    stored = leave_lesson(path, name)
    before = content(tmp_path)
    with serving(path, access=Access(read_only=True)) as (client, _):
        assert client._json("GET", "/jobs")["jobs"] == []
        assert client._json("GET", "/model/inspection")["checks"]
        assert content(tmp_path) == before
    assert content(tmp_path) == before
    assert stored.folder.exists()


def content(folder: Path) -> dict[str, tuple[int, int]]:
    found = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_followers_are_limited(tmp_path: Path) -> None:
    from clom.serve.traffic.limits import Limits

    path = tmp_path / "model.safetensors"
    save_model(path, slow_learner())
    classes = {name: write_pictures(tmp_path, name) for name in ("blue", "yellow")}
    with serving(path, limits=Limits(streams=2)) as (client, _):
        job = client.teach(classes)
        following = [Client(client.url).follow(job["id"]) for _ in range(2)]
        assert all(next(states)["id"] == job["id"] for states in following)
        with client.request("GET", f"/jobs/{job['id']}/events") as response:
            assert response.status == 503
        assert client.cancel(job["id"])["state"] == "cancelled"
        assert [list(states)[-1]["state"] for states in following] == ["cancelled"] * 2
