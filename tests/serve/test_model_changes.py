"""Changes of the model over the network: names, merged and forgotten classes, undo, and more pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from clom.locks import Lock
from clom.methods.clom import Clom
from clom.photos.teach import learn_pictures
from clom.serve.client import Client, Refused, encode_form
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson
from clom.serve.service import Service
from clom.storage.model_file import load_model, save_model
from photos.pictures import clom as trained
from serve.running import coloured, nearest_mean, pictures, png, serving, warm_model, write_pictures


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that knows red and green as 'warm', and blue and yellow as 'cold/sea'."""
    method = nearest_mean()
    learn_pictures(method, pictures("red", "green"), "warm")
    learn_pictures(method, pictures("blue", "yellow"), "cold/sea")
    save_model(tmp_path / "model.safetensors", method)
    return tmp_path / "model.safetensors"


@pytest.fixture
def server(path: Path) -> Iterator[tuple[Client, Service]]:
    with serving(path) as found:
        yield found


def send(client: Client, method: str, place: str, content: Any = None) -> tuple[int, dict[str, Any]]:
    body = None if content is None else json.dumps(content).encode()
    with client.request(method, place, body, {"Content-Type": "application/json"} if body else {}) as response:
        return response.status, json.load(response)


def tasks(client: Client) -> dict[str, list[str]]:
    return {task["name"]: task["classes"] for task in client.model()["tasks"]}


def test_names_merges_forgetting_and_undo(server: tuple[Client, Service], path: Path) -> None:
    client, _ = server
    first = client.model()
    assert first["server"]["can_undo"] is False
    place = quote("cold/sea", safe="")
    status, told = send(client, "PATCH", f"/tasks/{place}", {"new_name": " the  sea "})
    assert (status, told["said"]) == (200, "The task 'cold/sea' is now 'the sea'.")
    assert told["model"] == client.model()["version"] != first["version"]
    status, told = send(client, "PATCH", "/classes/blue", {"new_name": "navy"})
    assert (status, told["said"]) == (200, "The class 'blue' is now 'navy'.")
    assert send(client, "POST", "/merge", {"name": "yellow", "into": "navy"})[0] == 200
    assert client.model()["tasks"][1]["merged"] == {"yellow": "navy"}
    assert client.model()["server"]["can_undo"] is True
    assert client.undo()["said"].startswith("The model is as it was before its last change.")
    assert "merged" not in client.model()["tasks"][1]
    assert client.model()["server"]["can_undo"] is False
    assert client.forget("warm")["said"] == "Forgot 'warm': red, green."
    assert tasks(client) == {"the sea": ["navy", "yellow"]}
    assert [task.name for task in load_model(path).tasks] == ["the sea"]


@pytest.mark.parametrize(
    ("method", "place", "content", "status", "reason"),
    [
        ("PATCH", "/tasks/wram", {"new_name": "x"}, 422, "Did you mean 'warm'"),
        ("PATCH", "/tasks/warm", {"new_name": "cold/sea"}, 422, "already"),
        ("PATCH", "/tasks/warm", {"new_name": ""}, 422, "needs a name"),
        ("PATCH", "/tasks/warm", {"new_name": "a\u0000b"}, 422, "cannot be shown"),
        ("PATCH", "/tasks/warm", {}, 422, "new_name"),
        ("PATCH", "/tasks/warm", {"new_name": 7}, 422, "new_name"),
        ("PATCH", "/classes/rde", {"new_name": "x"}, 422, "Did you mean 'red'"),
        ("PATCH", "/classes/red", {"new_name": "blue"}, 422, "already"),
        ("POST", "/merge", {"name": "red"}, 422, "into"),
        ("POST", "/merge", {"name": "red", "into": "red"}, 422, "one class already"),
        ("POST", "/merge", {"name": "red", "into": "bleu"}, 422, "Did you mean 'blue'"),
        ("DELETE", "/tasks/wram", None, 422, "Did you mean 'warm'"),
        ("DELETE", "/tasks/", None, 422, "no task ''"),
        ("POST", "/undo", None, 422, "nothing to undo"),
    ],
)
def test_mistakes_cost_nothing(
    server: tuple[Client, Service], path: Path, method: str, place: str, content: Any, status: int, reason: str
) -> None:
    before = path.read_bytes()
    found, told = send(server[0], method, place, content)
    assert (found, reason in told["error"]) == (status, True), told
    assert path.read_bytes() == before


def test_a_model_that_another_process_changes(server: tuple[Client, Service], path: Path) -> None:
    with Lock(path):
        status, told = send(server[0], "DELETE", "/tasks/warm")
    assert status == 422
    assert "being taught by process" in told["error"]


def test_nothing_else_changes_while_a_lesson_waits(path: Path) -> None:
    left = pictures("red")
    lesson = Assignment("abc", "pets", ("cat", "dog"), (5, 5), ())
    StoredLesson(path).write(lesson, left.images.pixels, left.images.labels.tolist())
    with serving(path) as (client, _):
        for method, place in (("DELETE", "/tasks/warm"), ("POST", "/undo")):
            status, told = send(client, method, place)
            assert (status, "not finished" in told["error"]) == (409, True)


# --- more pictures ---------------------------------------------------------------------------------------------------


def test_pictures_are_added_and_other_tasks_stay(server: tuple[Client, Service], path: Path, tmp_path: Path) -> None:
    client, _ = server
    blue, yellow = client.model()["tasks"][1]["images"]
    job = client.add({"blue": write_pictures(tmp_path, "blue", 6, seed=3)})
    assert (job["adds"], job["task"]) == (True, "more of blue")
    last = list(client.follow(job["id"]))[-1]
    assert last["state"] == "done", last
    assert last["lesson"]["pictures"] == {"blue": 6}
    assert last["lesson"]["changed"] == ["cold/sea"]
    assert 0 <= last["lesson"]["right_left_out"] <= 6
    assert [check["verdict"] for check in last["checks"]] == ["identical", "changed"]
    assert client.model()["tasks"][1]["images"] == [blue + 6, yellow]
    assert not StoredLesson(path).folder.exists()
    assert client.undo()["said"]
    assert client.model()["tasks"][1]["images"] == [blue, yellow]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [(["bleu"], "Did you mean 'blue'"), ([], "No pictures came"), (["blue", "blue"], "1 pictures came with 2 labels")],
)
def test_pictures_that_cannot_be_added(server: tuple[Client, Service], labels: list[str], reason: str) -> None:
    fields: list[Any] = [("labels", label) for label in labels]
    fields += [("pictures", ("1.png", png(coloured("blue", 1)[0])))] if labels else []
    body, headers = encode_form(fields or [("name", "x")])
    with server[0].request("POST", "/pictures", body, headers) as response:
        assert response.status == 422
        assert reason in json.load(response)["error"]


def test_a_picture_that_cannot_be_read_is_not_added(server: tuple[Client, Service], path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(Refused, match=r"'blue' has 0\. Not readable: bad\.png: not a picture"):
        server[0].add({"blue": [tmp_path / "bad.png"]})
    assert path.read_bytes() == before


def test_methods_that_cannot_add_say_so(tmp_path: Path) -> None:
    method = trained()
    assert isinstance(method, Clom)
    path = warm_model(tmp_path / "model.safetensors", method)
    before = path.read_bytes()
    with serving(path) as (client, _):
        job = client.add({"red": write_pictures(tmp_path, "red", 2)})
        last = list(client.follow(job["id"]))[-1]
        assert last["state"] == "failed"
        assert "cannot add photos" in last["problem"]
        assert client.cancel(job["id"])["state"] == "cancelled"
    assert path.read_bytes() == before


@pytest.mark.parametrize("saved", [True, False])
def test_pictures_are_not_added_twice_after_a_crash(path: Path, saved: bool) -> None:
    """The server was killed before or after the model was saved, and before it tidied up."""
    from clom.photos.changes.add import add_photos

    more = pictures("blue", count=4)
    record = load_model(path).tasks[1].record
    assert record is not None
    blue, yellow = record.images
    stored = StoredLesson(path)
    assignment = Assignment("abc", "more of blue", ("blue",), (4,), (), adds=True)
    stored.write(assignment, more.images.pixels, more.images.labels.tolist())
    assert stored.read() == assignment
    if saved:
        add_photos(path, lambda size: stored.pictures())
    with serving(path) as (client, _):
        if not saved:
            assert client.job("abc")["state"] == "interrupted"
            client.resume("abc")
            assert list(client.follow("abc"))[-1]["state"] == "done"
        assert client.model()["tasks"][1]["images"] == [blue + 4, yellow]
        assert not stored.folder.exists()


# --- hints -----------------------------------------------------------------------------------------------------------


def doubtful(client: Client, place: str) -> dict[str, Any]:
    """A lesson with one picture under both classes."""
    fields: list[Any] = []
    for label in ("cat", "dog"):
        for number, pixels in enumerate([*coloured("blue", 5, seed=sum(label.encode())), coloured("red", 1)[0]]):
            fields += [("labels", label), ("pictures", (f"{number}.png", png(pixels)))]
    body, headers = encode_form(fields)
    with client.request("POST", place, body, headers) as response:
        assert response.status == 202
        found: dict[str, Any] = json.load(response)
    return found


def test_hints_come_before_learning_if_asked_for(server: tuple[Client, Service], path: Path) -> None:
    client, before = server[0], path.read_bytes()
    job = doubtful(client, "/tasks?stop_at_hints=true")
    assert job["state"] == "checked"
    assert [hint["kind"] for hint in job["hints"]] == ["two classes"]
    assert "cat/5.png and dog/5.png" in job["hints"][0]["text"]
    assert client.cancel(job["id"])["state"] == "cancelled"
    assert path.read_bytes() == before
    assert not StoredLesson(path).folder.exists()
    job = doubtful(client, "/tasks?stop_at_hints=true")
    client.resume(job["id"])
    last = list(client.follow(job["id"]))[-1]
    assert last["state"] == "done"
    mistakes = last["lesson"]["mistakes"]
    assert sum(map(sum, mistakes["counts"])) == mistakes["photos"]
    wrong = sum(pair["count"] for pair in mistakes["pairs"])
    assert all(
        picture.startswith("data:image/jpeg;base64,") for pair in mistakes["pairs"] for picture in pair["pictures"]
    )
    right = sum(row[place] for place, row in enumerate(mistakes["counts"]))
    assert wrong == mistakes["photos"] - right


def test_without_asking_hints_come_with_the_job(server: tuple[Client, Service]) -> None:
    job = doubtful(server[0], "/tasks")
    assert job["state"] == "preparing"
    assert [hint["kind"] for hint in job["hints"]] == ["two classes"]
    assert list(server[0].follow(job["id"]))[-1]["state"] == "done"
