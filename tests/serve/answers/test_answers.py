"""Questions to a server that really listens: answers, batches, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clom.cli import main
from clom.photos.predict import Predictor
from clom.serve.client import Client, Refused
from clom.serve.service import Service
from clom.serve.traffic.limits import Limits
from clom.storage.model_file import load_model, save_model
from data.test_folders import HOSTILE
from serve.running import coloured, nearest_mean, png, serving, warm_model, write_pictures


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Service]]:
    path = warm_model(tmp_path_factory.mktemp("serve") / "model.safetensors")
    with serving(path, limits=Limits(ask_bytes=3_000_000, ask_pictures=8, picture_bytes=2_000_000)) as server:
        yield server


def test_answers_as_the_model_does(running: tuple[Client, Service], tmp_path: Path) -> None:
    client, service = running
    files = write_pictures(tmp_path, "red", 3, seed=5) + write_pictures(tmp_path, "green", 2, seed=5)
    reply = client.predict(files, top=2)
    predictor = Predictor(load_model(service.path))
    direct = predictor(torch.cat([coloured("red", 3, 5), coloured("green", 2, 5)]), top=2)
    assert [answer["file"] for answer in reply["answers"]] == [path.name for path in files]
    for answer, expected in zip(reply["answers"], direct, strict=True):
        assert [guess["class_name"] for guess in answer["guesses"]] == [guess.class_name for guess in expected.guesses]
        assert answer["guesses"][0]["confidence"] == pytest.approx(expected.best.confidence, abs=1e-5)
        assert answer["familiarity"] == pytest.approx(expected.familiarity)
    assert [answer["guesses"][0]["class_name"] for answer in reply["answers"]] == ["red"] * 3 + ["green"] * 2
    assert reply["model"] == client.model()["version"]


def test_a_picture_can_be_the_whole_body(running: tuple[Client, Service]) -> None:
    client, _ = running
    with client.request("POST", "/predict", png(coloured("red", 1)[0]), {"Content-Type": "image/png"}) as response:
        assert response.status == 200
        assert json.load(response)["answers"][0]["guesses"][0]["class_name"] == "red"


def test_rejection_and_task_are_chosen_by_whoever_asks(running: tuple[Client, Service], tmp_path: Path) -> None:
    client, _ = running
    file = write_pictures(tmp_path, "blue", 1)
    known, strict = (client.predict(file, false_rejection=rate)["answers"][0] for rate in (0.0, 0.99))
    assert known["familiarity"] == strict["familiarity"]
    assert strict["unknown"]
    assert known["unknown"] == (known["familiarity"] <= 0)
    assert client.predict(file, task="warm")["task"] == "warm"
    with pytest.raises(Refused, match="no task 'cold'") as caught:
        client.predict(file, task="cold")
    assert caught.value.status == 422
    with pytest.raises(Refused, match="false_rejection"):
        client.predict(file, false_rejection=1.0)


def test_questions_that_come_together_are_answered_together(tmp_path: Path) -> None:
    path = warm_model(tmp_path / "model.safetensors")
    red, green = write_pictures(tmp_path, "red", 1)[0], write_pictures(tmp_path, "green", 1)[0]
    with serving(path, window=0.3) as (client, service):
        client.predict([red])  # starts a decoder
        found: dict[int, str] = {}

        def ask(number: int) -> None:
            top = 1 + number % 2
            answer = client.predict([red if number % 3 else green], top=top)["answers"][0]
            assert len(answer["guesses"]) == top
            found[number] = answer["guesses"][0]["class_name"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {number: "red" if number % 3 else "green" for number in range(6)}
        assert service.metrics.batches.total == 7
        assert sum(service.metrics.batches.counts) <= 4, "one by one"


@pytest.mark.parametrize("name", [*HOSTILE, "huge.png"])
def test_hostile_pictures_are_refused_with_a_reason(name: str, running: tuple[Client, Service], tmp_path: Path) -> None:
    client, _ = running
    content, reason = (bytes(2_500_000), "too large") if name == "huge.png" else (HOSTILE[name][0](), HOSTILE[name][1])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=reason) as caught:
        client.predict([tmp_path / name])
    assert caught.value.status == 422


def test_one_bad_picture_does_not_spoil_the_others(running: tuple[Client, Service], tmp_path: Path) -> None:
    client, _ = running
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    good = write_pictures(tmp_path, "green", 1)
    answers = client.predict([tmp_path / "bad.jpg", *good])["answers"]
    assert "not a picture" in answers[0]["error"]
    assert answers[1]["guesses"][0]["class_name"] == "green"


def test_too_much_is_refused(running: tuple[Client, Service], tmp_path: Path) -> None:
    client, _ = running
    file = write_pictures(tmp_path, "red", 1)
    with pytest.raises(Refused, match="Too many files"):
        client.predict(file * 9)
    with client.request("POST", "/predict", bytes(3_000_001), {"Content-Type": "image/png"}) as response:
        assert response.status == 413
    # Without a length that gives it away: counted while it comes.
    chunks = (bytes(100_000) for _ in range(40))
    with client.request("POST", "/predict", chunks, {"Content-Type": "image/png"}) as response:
        assert response.status == 413
    assert client.predict(file)["answers"][0]["guesses"][0]["class_name"] == "red"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", "multipart/form-data", 400),
        (b"nonsense", "multipart/form-data; boundary=x", 400),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (b"{}", "application/json", 415),
        (b"pictures=1", "application/x-www-form-urlencoded", 415),
        (b"", "image/png", 422),
    ],
)
def test_other_bodies_are_refused(body: bytes, kind: str, status: int, running: tuple[Client, Service]) -> None:
    client, _ = running
    for path in ("/predict",) if kind == "image/png" else ("/predict", "/tasks"):
        with client.request("POST", path, body, {"Content-Type": kind}) as response:
            assert response.status == status, path
            assert json.load(response)["error"]


def test_tells_about_itself(running: tuple[Client, Service], tmp_path: Path) -> None:
    client, _ = running
    client.predict(write_pictures(tmp_path, "red", 1))
    about = client.model()
    assert [task["name"] for task in about["tasks"]] == ["warm"]
    assert about["server"]["teaching"] is True
    assert about["rejection"]["held_out"] == 20
    assert about["rejection"]["costs"][0] == 0
    assert about["rejection"]["costs"] == sorted(about["rejection"]["costs"])
    assert str(Path(__file__).anchor) not in about["file"], "where the file lies is nobody's business"
    with client.request("GET", "/health") as response:
        assert json.load(response)["status"] == "ok"
    with client.request("GET", "/metrics") as response:
        text = response.read().decode()
    assert "# TYPE clom_answer_seconds histogram" in text
    assert "clom_tasks 1\n" in text
    assert 'route="/predict",status="200"' in text


def test_an_empty_model_says_so(tmp_path: Path) -> None:
    save_model(tmp_path / "empty.safetensors", nearest_mean())
    with serving(tmp_path / "empty.safetensors") as (client, _), pytest.raises(Refused, match="nothing yet") as caught:
        client.predict(write_pictures(tmp_path, "red", 1))
    assert caught.value.status == 409


def test_notices_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, nearest_mean())
    with serving(path) as (client, service):
        before = client.model()["version"]
        warm_model(path)
        import asyncio

        loop = asyncio.new_event_loop()
        loop.run_until_complete(service.engine.refresh())
        loop.close()
        assert client.model()["version"] != before
        assert client.predict(write_pictures(tmp_path, "red", 1))["answers"][0]["guesses"][0]["class_name"] == "red"


def run(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code


def test_the_command_line_asks_a_server(
    running: tuple[Client, Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, service = running
    write_pictures(tmp_path / "new", "red", 9)
    (tmp_path / "new" / "red" / "bad.png").write_bytes(b"no picture")
    folder = str(tmp_path / "new" / "red")
    run("predict", str(service.path), folder, "--threads", "1", "--json")
    local = json.loads(capsys.readouterr().out)
    run("predict", "--url", client.url, folder, "--json")
    remote = json.loads(capsys.readouterr().out)
    assert remote["unreadable"] == local["unreadable"]
    assert [answer["file"] for answer in remote["answers"]] == [answer["file"] for answer in local["answers"]]
    for one, two in zip(remote["answers"], local["answers"], strict=True):
        assert one["guesses"][0]["class_name"] == two["guesses"][0]["class_name"]
        assert one["guesses"][0]["confidence"] == pytest.approx(two["guesses"][0]["confidence"], abs=1e-5)
    run("predict", "--url", client.url, folder)
    assert "9 photos" in capsys.readouterr().out
    for words, problem in (
        (["--url", client.url, folder, "--task", "cold"], "no task 'cold'"),
        (["--url", "http://127.0.0.1:1", folder], "Is `clom serve` running there?"),
        (["--url", "ftp://x", folder], "not the address of a server"),
    ):
        run("predict", *words, code=2)
        assert problem in capsys.readouterr().err
