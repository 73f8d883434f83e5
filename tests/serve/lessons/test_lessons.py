"""Teaching over the network: progress, proof, cancelling, going on after a crash."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from clom.photos.teach import teach
from clom.photos.verify import verify
from clom.serve.client import Client, Refused
from clom.serve.lessons.stored_lesson import StoredLesson
from clom.storage.checkpoints import lesson_folder
from clom.storage.model_file import load_model, save_model
from serve.running import nearest_mean, serving, serving_apart, slow_learner, wait_until, warm_model, write_pictures


def lesson(folder: Path, *names: str, count: int = 6) -> dict[str, list[Path]]:
    return {name: write_pictures(folder, name, count) for name in names}


def state_of(client: Client, number: str) -> str:
    return str(client.job(number)["state"])


def test_teaches_and_proves_that_the_old_task_is_the_same(tmp_path: Path) -> None:
    path = warm_model(tmp_path / "model.safetensors")
    before = path.read_bytes()
    (tmp_path / "before.safetensors").write_bytes(before)
    classes = lesson(tmp_path, "blue", "yellow")
    (tmp_path / "bad.jpg").write_bytes(b"not a picture")
    classes["blue"].append(tmp_path / "bad.jpg")
    with serving(path) as (client, _):
        job = client.teach(classes, "cold")
        assert job["classes"] == [{"name": "blue", "pictures": 6}, {"name": "yellow", "pictures": 6}]
        assert job["unreadable"][0]["file"] == "bad.jpg"
        with pytest.raises(Refused, match="One lesson at a time") as caught:
            client.teach(lesson(tmp_path, "blue", "yellow"), "colder")
        assert caught.value.status == 409
        states = list(client.follow(job["id"]))
        assert states[-1]["state"] == "done"
        assert {state["state"] for state in states} <= {"preparing", "learning", "checking", "done"}
        assert states[-1]["progress"] == 1
        assert [check["verdict"] for check in states[-1]["checks"]] == ["identical", "new"]
        assert client.predict(classes["blue"][:1])["answers"][0]["guesses"][0]["class_name"] == "blue"
        red = write_pictures(tmp_path, "red", 1, seed=9)
        assert client.predict(red, task="warm")["answers"][0]["guesses"][0]["class_name"] == "red"
        assert not StoredLesson(path).folder.exists(), "pictures are gone once they were learned"
        about = client.model()
        assert about["tasks"][0]["fingerprint"] == states[-1]["checks"][0]["fingerprint"]
        with pytest.raises(Refused, match="knows these classes already: 'blue'"):
            client.teach(lesson(tmp_path, "blue", "green"), "again")
    assert [check.verdict for check in verify(path, tmp_path / "before.safetensors")] == ["identical", "new"]
    kept = [file.name.partition("-")[0] for file in tmp_path.glob(".*")]
    assert kept == [".model.safetensors.before"], "and nothing else"


def test_cancelling_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, slow_learner())
    before = path.read_bytes()
    with serving(path) as (client, service):
        job = client.teach(lesson(tmp_path, "blue", "yellow"))
        assert job["task"] == "task 1"
        stored = StoredLesson(path)
        assert stored.folder.stat().st_mode & 0o777 == 0o700
        wait_until(lambda: client.job(job["id"])["progress"] > 0)
        wait_until(lambda: (client.job(job["id"])["seconds_left"] or 0) > 0)
        worker = service.lessons._worker
        assert worker is not None
        assert worker._process is not None
        lesson_folder(path).mkdir(exist_ok=True)  # as after its first checkpoint
        assert client.cancel(job["id"])["state"] == "cancelled"
        assert worker._process.returncode is not None, "it learns on"
        assert path.read_bytes() == before
        assert not stored.folder.exists()
        assert not lesson_folder(path).exists(), "features of the pictures stay"
        with pytest.raises(Refused, match="Only a lesson that ended early"):
            client.resume(job["id"])
        assert state_of(client, client.teach(lesson(tmp_path, "blue", "yellow"))["id"]) == "preparing"
    # The end of the server in the middle of a lesson: pictures stay for the next start.
    assert StoredLesson(path).read() is not None
    assert path.read_bytes() == before


def test_killed_in_the_middle_it_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    path, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    for file in (path, other):
        save_model(file, slow_learner(epochs=30))
    before = path.read_bytes()
    with serving_apart(path) as (client, process):
        job = client.teach(lesson(tmp_path, "blue", "yellow"), "cold")
        wait_until(lambda: client.job(job["id"])["progress"] > 0)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert path.read_bytes() == before
    with serving(path) as (client, _):
        assert state_of(client, job["id"]) == "interrupted"
        with pytest.raises(Refused, match="not finished"):
            client.teach(lesson(tmp_path, "red", "green"))
        # The lock of the killed lesson is free again, or will be in a moment: its process ends with the server.
        while client.resume(job["id"]) and list(client.follow(job["id"]))[-1]["state"] == "failed":
            assert "being taught" in client.job(job["id"])["problem"]
            time.sleep(0.1)
        assert state_of(client, job["id"]) == "done"
        assert [task["name"] for task in client.model()["tasks"]] == ["cold"]
    # As if nothing had happened: the same lesson without an interruption gives the same bits.
    teach(other, tmp_path_of(tmp_path, "blue", "yellow"), "cold")
    prints = [task.record.fingerprint for file in (path, other) for task in load_model(file).tasks if task.record]
    assert prints[0] == prints[1]


def tmp_path_of(folder: Path, *names: str) -> Path:
    """A folder with these classes only."""
    place = folder / "only"
    for name in names:
        write_pictures(place, name)
    return place


def test_a_finished_lesson_that_was_not_tidied_up_is_not_done_twice(tmp_path: Path) -> None:
    path = warm_model(tmp_path / "model.safetensors")
    method = nearest_mean()
    from clom.serve.lessons.stored_lesson import Assignment
    from serve.running import pictures

    found = pictures("red", "green")
    StoredLesson(path).write(
        Assignment("abc", "warm", ("red", "green"), (10, 10), ()), found.images.pixels, found.images.labels.tolist()
    )
    with serving(path) as (client, _):
        with pytest.raises(Refused, match="no lesson"):
            client.job("abc")
        assert not StoredLesson(path).folder.exists()
    assert method.tasks == []


@pytest.mark.parametrize(
    ("classes", "name", "reason"),
    [
        ({"blue": 6}, "", "At least 2 classes"),
        ({"blue": 6, "yellow": 4}, "", "'yellow' has 4"),
        ({"red": 6, "blue": 6}, "", "knows these classes already: 'red'"),
        ({"blue": 6, "yellow": 6}, "warm", "a task 'warm' already"),
        ({"blue": 6, " ": 6}, "", "A class needs a name"),
        ({"blue": 6, "y" * 81: 6}, "", "at most 80"),
        ({"blue": 6, "a\u202eb": 6}, "", "cannot be shown"),
    ],
)
def test_lessons_that_cannot_be_learned_are_refused(
    classes: dict[str, int], name: str, reason: str, tmp_path: Path, quick: Client
) -> None:
    file = write_pictures(tmp_path, "blue", 1)
    with pytest.raises(Refused, match=reason) as caught:
        quick.teach({label: file * count for label, count in classes.items()}, name)
    assert caught.value.status == 422
    assert os.listdir(tmp_path) == ["blue"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> object:
    path = warm_model(tmp_path_factory.mktemp("quick") / "model.safetensors")
    with serving(path) as (client, _):
        yield client
