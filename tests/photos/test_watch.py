"""A folder that fills up: what is there is learned once, when it is quiet, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clom.errors import UserError
from clom.photos import presets as create
from clom.photos import watch as watch_module
from clom.photos.changes.add import Added, add_photos
from clom.photos.teach import Lesson
from clom.photos.watch import FolderWatch
from clom.storage.model_file import load_model
from photos.pictures import clom, ncm, write_pictures


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "new_method", lambda method="ncm", backbone="", seed=0: ncm(seed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "inbox"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "my.model"


class Clock:
    """Looks at the folder as seconds pass."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.now = 100.0
        self.watch = FolderWatch(model, folder, quiet_seconds=5)

    def look(self, seconds: float = 10) -> list[Any]:
        """Two looks: the first notices what changed, the second is `seconds` later."""
        found = list(self.watch.look(self.now))
        self.now += seconds
        return [*found, *self.watch.look(self.now)]


def tasks(model: Path) -> list[tuple[str, tuple[str, ...]]]:
    return [(task.name, task.class_names) for task in load_model(model).tasks]


def images(model: Path) -> tuple[int, ...]:
    """The recorded number of photos of green and red."""
    record = load_model(model).tasks[0].record
    assert record is not None
    return record.images


def test_classes_and_photos_are_learned_as_they_appear(model: Path, folder: Path) -> None:
    clock = Clock(model, folder)
    assert clock.look() == [], "the folder does not exist yet"
    write_pictures(folder, "red", count=6)
    assert clock.look() == []
    assert clock.watch.waiting == "Waiting: a new task needs 2 classes of 5 photos each; so far 'red' 6."
    write_pictures(folder, "green", count=4)
    assert clock.look() == []
    assert "so far 'green' 4, 'red' 6" in clock.watch.waiting
    write_pictures(folder, "green", count=5)
    (lesson,) = clock.look()
    assert isinstance(lesson, Lesson)
    assert tasks(model) == [("inbox", ("green", "red"))]
    assert (clock.watch.waiting, clock.look()) == ("", [])
    write_pictures(folder, "blue", "grey", count=5)
    write_pictures(folder / "later", "red", count=2, seed=4)
    (folder / "later" / "red" / "0.png").rename(folder / "red" / "new.png")
    lesson, added = clock.look()
    assert isinstance(lesson, Lesson)
    assert isinstance(added, Added)
    assert added.photos == {"red": 1}
    assert tasks(model)[1:] == [("inbox 2", ("blue", "grey"))]
    assert clock.look() == []


def test_nothing_is_read_while_files_still_arrive(model: Path, folder: Path) -> None:
    write_pictures(folder, "red", "green", count=5)
    clock = Clock(model, folder)
    for number in range(4):
        assert clock.look(4) == []
        (folder / "red" / f"more{number}.png").write_bytes((folder / "red" / "0.png").read_bytes())
    assert not model.exists()
    assert len(clock.look(5)) == 1


def test_another_process_goes_on_where_the_first_ended(model: Path, folder: Path) -> None:
    write_pictures(folder, "red", "green", count=5)
    assert len(Clock(model, folder).look()) == 1
    assert Clock(model, folder).look() == []
    write_pictures(folder, "red", count=7)
    (added,) = Clock(model, folder).look()
    assert added.photos == {"red": 7}, "rewritten files are new photos"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_saving_no_photo_is_missed_or_learned_twice(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    write_pictures(folder, "red", "green", count=5)
    Clock(model, folder).look()
    before = images(model)
    (folder / "red" / "new.png").write_bytes((folder / "red" / "0.png").read_bytes())
    honest = add_photos

    def die(*arguments: Any, **options: Any) -> Any:
        if moment == "after":
            honest(*arguments, **options)
        raise Killed

    monkeypatch.setattr(watch_module, "add_photos", die)
    with pytest.raises(Killed):
        Clock(model, folder).look()
    monkeypatch.setattr(watch_module, "add_photos", honest)
    found = Clock(model, folder).look()
    assert len(found) == (1 if moment == "before" else 0)
    assert images(model) == (before[0], before[1] + 1)


def test_what_is_refused_is_said_once(model: Path, folder: Path) -> None:
    write_pictures(folder, "red", "green", count=4)
    for name in ("red", "green"):
        (folder / name / "broken.png").write_bytes(b"no picture")
    clock = Clock(model, folder)
    (problem,) = clock.look()
    assert isinstance(problem, UserError)
    assert "needs at least 5 pictures" in str(problem)
    assert clock.look() == []
    write_pictures(folder, "red", "green", count=6)
    (lesson,) = clock.look()
    assert [file.path.name for file in lesson.skipped] == ["broken.png", "broken.png"]


def test_methods_that_cannot_add_still_learn_new_classes(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "new_method", lambda seed=0: clom(seed))
    write_pictures(folder, "red", "green", count=5)
    clock = Clock(model, folder)
    clock.look()
    write_pictures(folder, "red", count=6)
    write_pictures(folder, "blue", "grey", count=5)
    lesson, problem = clock.look()
    assert isinstance(lesson, Lesson)
    assert "cannot add photos" in str(problem)


@pytest.mark.parametrize("notes", ["{", "[]", '{"folder": 3}', "DAMAGED"])
def test_damaged_notes_are_no_notes(model: Path, folder: Path, notes: str) -> None:
    write_pictures(folder, "red", "green", count=5)
    Clock(model, folder).look()
    file = model.with_name(".my.model.watched")
    content = json.loads(file.read_text())
    content["learned"] = 7
    file.write_text(notes.replace("DAMAGED", json.dumps(content)))
    (added,) = Clock(model, folder).look()
    assert added.photos == {"green": 5, "red": 5}


def test_names_that_are_no_names_are_refused(model: Path, folder: Path) -> None:
    write_pictures(folder, "red", "green", count=5)
    clock = Clock(model, folder)
    clock.watch.name = "leaves"
    clock.look()
    assert tasks(model)[0][0] == "leaves"
