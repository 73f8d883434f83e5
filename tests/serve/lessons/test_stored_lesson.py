"""The images of a lesson beside the model: whole or not there, private, and the model as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.serve.images.decoder_pool import Unreadable
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson

ASSIGNMENT = Assignment("7", "fruit", ("apple", "pear"), (1, 2), (Unreadable("cat.txt", "no image"),))
PIXELS = torch.arange(3 * 3 * 4 * 4, dtype=torch.uint8).reshape(3, 3, 4, 4)


@pytest.fixture
def stored(tmp_path: Path) -> StoredLesson:
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"as it was")
    stored = StoredLesson(model)
    stored.write(ASSIGNMENT, PIXELS, [0, 1, 1])
    return stored


def test_another_process_finds_the_lesson(stored: StoredLesson) -> None:
    found = StoredLesson(stored.model)
    assert found.read() == ASSIGNMENT
    pictures = found.pictures()
    assert pictures.class_names == ("apple", "pear")
    assert torch.equal(pictures.images.pixels, PIXELS)
    assert pictures.images.labels.tolist() == [0, 1, 1]


def test_nobody_else_can_look(stored: StoredLesson) -> None:
    assert stat.S_IMODE(stored.folder.stat().st_mode) == 0o700


def test_the_model_as_it_was_outlives_its_replacement(stored: StoredLesson, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"as it is")
    (tmp_path / "new").rename(stored.model)
    assert stored.before.read_bytes() == b"as it was"


def test_nothing_or_nothing_useful_is_there(stored: StoredLesson) -> None:
    (stored.folder / "lesson.json").write_text('{"id": 1}')
    assert stored.read() is None
    stored.remove()
    assert stored.read() is None
    with pytest.raises(UserError, match="are gone"):
        stored.pictures()


def test_a_second_lesson_replaces_the_first(stored: StoredLesson, tmp_path: Path) -> None:
    (tmp_path / f"{stored.folder.name}.new").mkdir()  # left by a process that was killed
    stored.write(Assignment("8", "trees", ("oak", "elm"), (1, 2), ()), PIXELS, [0, 1, 1])
    found = stored.read()
    assert found is not None
    assert found.id == "8"
    assert sorted(path.name for path in tmp_path.iterdir()) == [stored.folder.name, "m.safetensors"]
