"""The process that learns, called in this one: what it tells."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import plugin_files
from clom import machine
from clom.errors import UserError
from clom.methods.families.base import Method
from clom.plugins import load_plugin
from clom.serve.lessons import runner, worker
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson
from clom.serve.service import Service
from clom.serve.worker_process import WorkerProcess
from clom.storage.model_file import load_model
from clom.testing.simulated_device import simulated_device
from plugin_files import write
from serve.running import pictures, warm_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return warm_model(tmp_path / "m.safetensors")


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_process_loads_the_plugins_of_the_server(model: Path, tmp_path: Path) -> None:
    """A model of a plug-in could not be read without it."""

    async def events() -> list[str]:
        return [event["event"] async for event in WorkerProcess("inspect", model, 1, 0).events()]

    with plugin_files.clean():
        load_plugin(write(tmp_path, "my_file.py", """print('{"event": "plug-in loaded"}', flush=True)"""))
        assert asyncio.run(events()) == ["plug-in loaded", "done"]


def test_a_lesson_learned_on_another_device_is_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []
    learn = Method.learn

    def recorded(self: Method, *arguments: Any) -> Method:
        devices.append(self.device)
        return learn(self, *arguments)

    monkeypatch.setattr(Method, "learn", recorded)
    lesson, learned = pictures("blue", "yellow"), []
    for device in (torch.device("cpu"), simulated_device()):
        path = tmp_path / f"{device.type}.safetensors"
        path.write_bytes(model.read_bytes())
        assignment = Assignment("1", "cold", ("blue", "yellow"), (10, 10), ())
        StoredLesson(path).write(assignment, lesson.images.pixels, lesson.images.labels.tolist())
        worker.learn(path, device)
        learned.append(load_model(path).state_dict())
    assert devices == [torch.device("cpu"), simulated_device()]
    assert all(torch.equal(value, learned[1][name]) for name, value in learned[0].items())


def test_the_process_is_told_the_device(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[torch.device] = []
    monkeypatch.setattr(worker, "learn", lambda path, device: told.append(device))
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    monkeypatch.setattr(machine, "tune_process", lambda threads: None)
    words = WorkerProcess("learn", model, 1, 0, torch.device("cuda:1"))._words
    monkeypatch.setattr(sys, "argv", ["worker", *words])
    worker.main()
    assert told == [torch.device("cuda:1")]


def test_lessons_are_learned_on_the_device_of_the_server(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Recorded(WorkerProcess):
        def __init__(self, *arguments: Any) -> None:
            asked.append(arguments[-1])
            super().__init__("inspect", *arguments[1:-1])

    monkeypatch.setattr(runner, "WorkerProcess", Recorded)
    device = simulated_device()
    lesson = pictures("blue", "yellow")

    async def teach() -> None:
        service = Service(model, device=device)
        async with service.running():
            job = await service.lessons.begin(
                "cold", ["blue", "yellow"], lesson.images.pixels, lesson.images.labels.tolist()
            )
            async for _ in service.lessons.changes(job):
                pass

    asyncio.run(teach())
    assert asked == [device]


def test_learning_is_told_step_by_step(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = pictures("blue", "yellow")
    assignment = Assignment("1", "cold", ("blue", "yellow"), (10, 10), ())
    StoredLesson(model).write(assignment, lesson.images.pixels, lesson.images.labels.tolist())
    worker.learn(model)
    events = told(capsys)
    assert [event["event"] for event in events if event["event"] != "step"] == ["plan", "saved", "done"]
    assert events[0]["n_train"] + events[0]["n_validation"] == 20
    assert events[-1]["lesson"]["n_tasks"] == 2
    assert [task.name for task in load_model(model).tasks] == ["warm", "cold"]


def test_inspecting(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker.inspect(model)
    (event,) = told(capsys)
    assert [check["verdict"] for check in event["checks"]] == ["identical"]
    assert event["separation"] is None


def test_a_lesson_that_is_gone(model: Path) -> None:
    with pytest.raises(UserError, match="are gone"):
        worker.learn(model)


def test_it_ends_with_its_input() -> None:
    """Its parent may die in any way."""
    code = """
import threading
from clom.serve.lessons import worker
threading.Thread(target=worker._end_with_input).start()
print("ready", flush=True)
threading.Event().wait()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(30) == 1
    process.stdout.close()
