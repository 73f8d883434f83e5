"""Other names for classes and tasks: nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.locks import Lock
from clom.photos.changes.merge import merge_classes
from clom.photos.changes.names import clean_name
from clom.photos.changes.rename import rename_class, rename_task
from clom.photos.previous import undo
from clom.photos.teach import learn_pictures
from clom.photos.verify import verify
from clom.storage.fingerprint import probes
from clom.storage.model_file import load_model, save_model
from photos.pictures import clom_from_scratch, ncm, pictures, slda


@pytest.fixture(params=[ncm, slda, clom_from_scratch])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    method = request.param()
    learn_pictures(method, pictures("red", "green"), "leaves")
    learn_pictures(method, pictures("blue", "grey"), "sea")
    save_model(tmp_path / "my.model", method)
    return tmp_path / "my.model"


def classes(path: Path) -> list[tuple[str, ...]]:
    return [task.class_names for task in load_model(path).tasks]


def test_a_class_gets_another_name_and_nothing_else_changes(path: Path) -> None:
    old = load_model(path)
    before = [check.verdict for check in verify(path)]
    assert rename_class(path, "green", "  moss   green ") == "moss green"
    new = load_model(path)
    assert classes(path) == [("red", "moss green"), ("blue", "grey")]
    images = probes(old.image_shape)
    assert all(torch.equal(one, two) for one, two in zip(old.blocks(images), new.blocks(images), strict=True))
    assert [check.verdict for check in verify(path)] == before
    assert undo(path).changed == ("leaves",)
    assert classes(path) == [("red", "green"), ("blue", "grey")]


def test_a_damaged_task_does_not_become_intact_by_a_new_name(path: Path) -> None:
    method = load_model(path)
    record = method.tasks[0].record
    assert record is not None
    damaged = record.model_copy(update={"fingerprint": "0" * 64})
    method.tasks[0] = replace(method.tasks[0], record=damaged)
    save_model(path, method)
    assert verify(path)[0].verdict == "changed"
    rename_class(path, "red", "crimson")
    assert verify(path)[0].verdict == "changed"


def test_a_task_gets_another_name(path: Path) -> None:
    before = [check.verdict for check in verify(path)]
    rename_task(path, "sea", "ocean")
    assert [task.name for task in load_model(path).tasks] == ["leaves", "ocean"]
    assert [check.verdict for check in verify(path)] == before


def test_merged_classes_follow(path: Path) -> None:
    merge_classes(path, "grey", "blue")
    rename_class(path, "blue", "navy")
    rename_class(path, "grey", "silver")
    assert load_model(path).tasks[1].merged == {"silver": "navy"}


@pytest.mark.parametrize(
    ("rename", "old", "new", "expected"),
    [
        (rename_class, "gren", "moss", "Did you mean 'green'"),
        (rename_class, "green", "blue", "a class 'blue' already, in task 'sea'.*clom merge"),
        (rename_class, "green", "green", "already"),
        (rename_class, "green", " ", "needs a name"),
        (rename_class, "green", "x" * 81, "at most 80"),
        (rename_class, "green", "a\x1b[31mb", "cannot be shown"),
        (rename_class, "sea", "ocean", "There is no class 'sea'"),
        (rename_task, "see", "ocean", "Did you mean 'sea'"),
        (rename_task, "sea", "leaves", "a task 'leaves' already"),
        (rename_task, "sea", "\u202e", "cannot be shown"),
        (rename_task, "sea", "", "needs a name"),
    ],
)
def test_mistakes_cost_nothing(tmp_path: Path, rename: object, old: str, new: str, expected: str) -> None:
    method = ncm()
    learn_pictures(method, pictures("red", "green"), "leaves")
    learn_pictures(method, pictures("blue", "grey"), "sea")
    path = tmp_path / "my.model"
    save_model(path, method)
    content = path.read_bytes()
    with pytest.raises(UserError, match=expected):
        rename(path, old, new)  # type: ignore[operator]
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["my.model"]


def test_a_model_that_is_being_taught_or_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        rename_class(tmp_path / "absent.model", "a", "b")
    path = tmp_path / "my.model"
    save_model(path, ncm())
    with Lock(path), pytest.raises(UserError, match="being taught by process"):
        rename_class(path, "a", "b")
    with pytest.raises(UserError, match="There is no class 'a'"):
        rename_class(path, "a", "b")


def test_names_are_normalised() -> None:
    assert clean_name("cafe\u0301\n  noir", "class") == "café noir"
