"""The images of a lesson beside the model: whole or not there, private, and the model as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.serve.images.decoder_pool import Unreadable
from clom.serve.lessons.stored_images import Assignment, Kept

ASSIGNMENT = Assignment("7", "fruit", ("apple", "pear"), (1, 2), (Unreadable("cat.txt", "no image"),))
PIXELS = torch.arange(3 * 3 * 4 * 4, dtype=torch.uint8).reshape(3, 3, 4, 4)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"as it was")
    kept = Kept(model)
    kept.write(ASSIGNMENT, PIXELS, [0, 1, 1])
    return kept


def test_another_process_finds_the_lesson(kept: Kept) -> None:
    found = Kept(kept.model)
    assert found.read() == ASSIGNMENT
    pictures = found.pictures()
    assert pictures.class_names == ("apple", "pear")
    assert torch.equal(pictures.images.pixels, PIXELS)
    assert pictures.images.labels.tolist() == [0, 1, 1]


def test_nobody_else_can_look(kept: Kept) -> None:
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_the_model_as_it_was_outlives_its_replacement(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"as it is")
    (tmp_path / "new").rename(kept.model)
    assert kept.before.read_bytes() == b"as it was"


def test_nothing_or_nothing_useful_is_there(kept: Kept) -> None:
    (kept.folder / "lesson.json").write_text('{"id": 1}')
    assert kept.read() is None
    kept.remove()
    assert kept.read() is None
    with pytest.raises(UserError, match="are gone"):
        kept.pictures()


def test_a_second_lesson_replaces_the_first(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / f"{kept.folder.name}.new").mkdir()  # left by a process that was killed
    kept.write(Assignment("8", "trees", ("oak", "elm"), (1, 2), ()), PIXELS, [0, 1, 1])
    found = kept.read()
    assert found is not None
    assert found.id == "8"
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept.folder.name, "m.safetensors"]
