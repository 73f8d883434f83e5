"""The version before the last change: kept whole, put back bit by bit, and never that of another model."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.locks import Lock
from clom.photos import previous
from clom.photos.forget import forget
from clom.photos.previous import keeps_previous, previous_version, save_change, undo
from clom.photos.teach import learn_pictures, teach
from clom.storage.model_file import save_model
from photos.pictures import ncm, pictures


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of one task that was made in one lesson."""
    method = ncm()
    learn_pictures(method, pictures("red", "green"), "one")
    save_model(tmp_path / "my.model", method)
    return tmp_path / "my.model"


def learn(path: Path, name: str, *classes: str) -> bytes:
    teach(path, lambda size: pictures(*classes), name)
    return path.read_bytes()


def names(path: Path) -> list[str]:
    return sorted(file.name.partition("-")[0] for file in path.parent.iterdir())


def test_the_last_lesson_is_taken_back_bit_by_bit(path: Path) -> None:
    contents = [path.read_bytes(), learn(path, "two", "blue"), learn(path, "three", "grey")]
    assert names(path) == [".my.model.before", "my.model"], "one version is kept, not all of them"
    digests = [hashlib.sha256(content).hexdigest()[:12] for content in contents]
    assert [keeps_previous(path, digest) for digest in digests] == [False, False, True]
    assert undo(path).removed == ("three",)
    assert path.read_bytes() == contents[1]
    assert names(path) == ["my.model"]
    with pytest.raises(UserError, match="nothing to undo"):
        undo(path)
    assert path.read_bytes() == contents[1]


def test_a_lesson_after_undo_can_be_undone(path: Path) -> None:
    before = path.read_bytes()
    for name in ("two", "three"):
        learn(path, name, "blue")
        undo(path)
        assert path.read_bytes() == before


def test_the_first_lesson_of_a_new_model_has_nothing_before(tmp_path: Path) -> None:
    path = tmp_path / "new.model"
    method = ncm()
    learn_pictures(method, pictures("red", "green"), "one")
    with Lock(path):
        save_change(path, method, None)
    assert previous_version(path) is None
    with pytest.raises(UserError, match="first lesson"):
        undo(path)
    with pytest.raises(UserError, match="There is no file"):
        undo(tmp_path / "absent.model")


def test_a_model_that_was_replaced_by_hand_has_nothing_before(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "other.model")
    other = learn(tmp_path / "other.model", "other", "grey")
    learn(path, "two", "blue")
    path.write_bytes(other)
    with pytest.raises(UserError, match="nothing to undo"):
        undo(path)
    assert path.read_bytes() == other


def test_a_new_model_in_the_place_of_an_old_one_has_nothing_before(path: Path) -> None:
    learn(path, "two", "blue")
    path.unlink()
    method = ncm()
    learn_pictures(method, pictures("red", "green"), "one")
    with Lock(path):
        save_change(path, method, None)
    assert names(path) == ["my.model"]


def test_forgetting_is_for_good(path: Path) -> None:
    learn(path, "two", "blue")
    forget(path, "two")
    assert names(path) == ["my.model"], "the version before has the forgotten task"
    with pytest.raises(UserError, match="forgetting a task"):
        undo(path)


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.model"
    link.parent.mkdir()
    link.symlink_to(path)
    before = path.read_bytes()
    learn(link, "two", "blue")
    undo(link)
    assert link.is_symlink()
    assert path.read_bytes() == before


def test_where_files_cannot_be_linked_they_are_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    before = path.read_bytes()
    learn(path, "two", "blue")
    undo(path)
    assert path.read_bytes() == before
    assert names(path) == ["my.model"]


def test_undo_waits_for_nobody(path: Path) -> None:
    learn(path, "two", "blue")
    with Lock(path), pytest.raises(UserError, match="being taught by process"):
        undo(path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before the model is saved", "after the model is saved"])
def test_killed_between_the_steps_of_a_change(path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The lesson before can be undone if this one did not happen, and this one if it did."""
    first = path.read_bytes()
    second = learn(path, "two", "blue")

    def die(*arguments: object) -> None:
        if moment.startswith("after"):
            save_model(*arguments)  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(previous, "save_model", die)
    with pytest.raises(Killed):
        learn(path, "three", "grey")
    monkeypatch.undo()
    assert (path.read_bytes() == second) == moment.startswith("before")
    undone = undo(path)
    assert path.read_bytes() == (first if moment.startswith("before") else second)
    assert undone.removed == (("two",) if moment.startswith("before") else ("three",))
    assert names(path) == ["my.model"]


def test_a_previous_version_that_is_damaged_is_refused(path: Path) -> None:
    after = learn(path, "two", "blue")
    kept = previous_version(path)
    assert kept is not None
    kept.write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read as a model"):
        undo(path)
    assert path.read_bytes() == after
