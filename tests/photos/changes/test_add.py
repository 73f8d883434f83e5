"""More photos for known classes: they get better, the others do not change by a bit, and nothing is ever lost."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.methods.families.base import Method
from clom.methods.ncm import Ncm
from clom.photos.changes.add import add_photos, correct, extend_method, look_at_more
from clom.photos.changes.merge import merge_classes
from clom.photos.predict import Predictor
from clom.photos.previous import undo
from clom.photos.teach import LessonPlan, Listener, learn_pictures
from clom.photos.verify import verify
from clom.storage.fingerprint import fingerprint, probes
from clom.storage.model_file import load_model, save_model
from photos.pictures import clom, coloured, experts, mean_colour, ncm, pictures, slda, write_pictures


def taught(method: Method) -> Method:
    learn_pictures(method, pictures("red", "green"), "leaves")
    learn_pictures(method, pictures("blue", "grey"), "sea")
    return method


@pytest.fixture(params=[ncm, slda, experts])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_model(tmp_path / "my.model", taught(request.param()))
    return tmp_path / "my.model"


def images(path: Path) -> list[int]:
    """The recorded number of photos of each class."""
    records = [task.record for task in load_model(path).tasks]
    return [count for record in records if record is not None for count in record.images]


def test_only_the_task_of_the_class_changes(path: Path, tmp_path: Path) -> None:
    old = load_model(path)
    shutil.copy(path, tmp_path / "old.model")
    added = add_photos(path, write_pictures(tmp_path / "more", "grey", count=10, seed=5))
    new = load_model(path)
    assert (added.photos, added.changed, added.unchanged) == ({"grey": 10}, ("sea",), ("leaves",))
    assert [check.verdict for check in verify(path, tmp_path / "old.model")] == ["identical", "changed"]
    assert [check.verdict for check in verify(path)][1] == "identical", "its record says what it is now"
    images = probes(old.image_shape)
    (old_blocks, old_belonging), (new_blocks, new_belonging) = (
        method.blocks_and_belonging(images) for method in (old, new)
    )
    assert torch.equal(old_blocks[0], new_blocks[0])
    assert torch.equal(old_belonging[:, 0], new_belonging[:, 0])
    assert not torch.equal(old_blocks[1], new_blocks[1])
    undo(path)
    assert path.read_bytes() == (tmp_path / "old.model").read_bytes()


def test_the_records_are_those_of_all_photos(path: Path, tmp_path: Path) -> None:
    before = [task.record for task in load_model(path).tasks]
    added = add_photos(path, write_pictures(tmp_path / "more", "grey", count=10, seed=5))
    after = [task.record for task in load_model(path).tasks]
    assert after[0] == before[0]
    assert before[1] is not None
    assert after[1] is not None
    assert after[1].images == (before[1].images[0], before[1].images[1] + 10)
    assert after[1].validation_images == (before[1].validation_images[0], before[1].validation_images[1] + 10)
    assert len(after[1].belonging) == len(before[1].belonging) + 10
    assert set(before[1].belonging) <= set(after[1].belonging)
    assert after[1].fingerprint == fingerprint(load_model(path), 1)
    assert (before[1].extended, after[1].learned) == (None, before[1].learned)
    assert after[1].extended is not None
    assert added.right_left_out is not None
    n_before, n_after = sum(before[1].validation_images), sum(after[1].validation_images)
    right = after[1].accuracy * n_after - before[1].accuracy * n_before
    assert right == pytest.approx(round(right), abs=1e-6)


def test_a_class_that_was_taught_wrong_becomes_right() -> None:
    """The class grey was taught with photos of blue, and violet is nearer to grey."""
    method = mean_colour()
    lesson = pictures("violet", "blue", count=6)
    learn_pictures(method, type(lesson)(("blue", "grey"), lesson.images, lesson.paths, ()), "sea")
    learn_pictures(method, pictures("red", "green"), "leaves")
    new = coloured("grey", 20, seed=9)

    def right() -> int:
        return sum(answer.best.class_name == "grey" for answer in Predictor(method)(new, false_rejection=0))

    assert right() == 0
    added = extend_method(method, pictures("grey", count=30, seed=3))
    assert right() == 20
    assert (added.right_before, added.right_after) == (0, 30)


def test_a_wrong_answer_is_corrected(path: Path, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "odd", "violet", count=1)
    before = images(path)
    added = correct(path, "green", [folder / "violet" / "0.png"])
    assert (added.photos, added.changed, added.files) == ({"green": 1}, ("leaves",), ("violet/0.png",))
    assert added.truths == ("green",)
    assert added.right_left_out is None, "one photo cannot be left out"
    assert images(path) == [before[0], before[1] + 1, *before[2:]]


def test_photos_of_a_merged_class_should_be_answered_by_the_other_name(path: Path, tmp_path: Path) -> None:
    merge_classes(path, "grey", "blue")
    added = add_photos(path, write_pictures(tmp_path / "more", "grey", count=3, seed=5))
    assert added.photos == {"grey": 3}
    assert added.truths == ("blue",) * 3


def test_the_listener_is_told_and_a_look_changes_nothing(path: Path, tmp_path: Path) -> None:
    folder, content = write_pictures(tmp_path / "more", "grey", count=3, seed=5), path.read_bytes()
    plan = look_at_more(path, folder)
    assert (plan.class_names, plan.n_train, plan.n_validation) == (("grey",), 3, 0)
    assert path.read_bytes() == content
    heard: list[object] = []
    add_photos(path, folder, listener=Listener(None, heard.append, heard.append))
    assert isinstance(heard[0], LessonPlan)
    assert heard[1:]


# --- refusals --------------------------------------------------------------------------------------------------------


def test_classes_it_does_not_know(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    with pytest.raises(UserError, match=r"There is no class 'gray'\. Did you mean 'grey'"):
        add_photos(path, write_pictures(tmp_path / "more", "gray", "blue", count=1))
    with pytest.raises(UserError, match="Did you mean 'grey'"):
        correct(path, "gray", [])
    with pytest.raises(UserError, match="There is no folder"):
        add_photos(path, tmp_path / "absent")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"None of the photos can be read.*not a picture"):
        correct(path, "grey", [tmp_path / "broken.png"])
    assert path.read_bytes() == content
    assert not list(tmp_path.glob(".*"))


def test_methods_that_were_trained_refuse(tmp_path: Path) -> None:
    method = clom()
    learn_pictures(method, pictures("red", "green"), "leaves")
    save_model(tmp_path / "my.model", method)
    content = (tmp_path / "my.model").read_bytes()
    with pytest.raises(UserError, match=r"clom cannot add photos to a class it knows.*Forget the task and learn it"):
        add_photos(tmp_path / "my.model", write_pictures(tmp_path / "more", "red", count=2))
    assert (tmp_path / "my.model").read_bytes() == content


def test_a_method_that_changes_other_tasks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    method = taught(ncm())
    honest = type(method).extend

    def wrong(self: Method, *arguments: object) -> object:
        found = honest(self, *arguments)  # type: ignore[arg-type]
        assert isinstance(self, Ncm)
        self.means = self.means + 1
        return found

    monkeypatch.setattr(type(method), "extend", wrong)
    with pytest.raises(RuntimeError, match="changed tasks that were given no photos"):
        extend_method(method, pictures("grey"))


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("moment", ["set aside", "writing", "before renaming", "after renaming"])
def test_killed_while_adding(tmp_path: Path, moment: str) -> None:
    """By SIGKILL, in a process of its own: the model is the old one or the new one, and can be used and undone."""
    path, folder = tmp_path / "my.model", write_pictures(tmp_path / "more", "grey", count=4, seed=5)
    save_model(path, taught(ncm()))
    old = path.read_bytes()
    add_photos(path, folder)
    new = path.read_bytes()
    undo(path)
    process = os.fork()
    if not process:
        _die_at(moment, path)
        add_photos(path, folder)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
    happened = moment == "after renaming"
    assert load_model(path).tasks[1].record != load_model_from(old, tmp_path).tasks[1].record or not happened
    if happened:
        assert _without_times(path.read_bytes(), tmp_path) == _without_times(new, tmp_path)
        undo(path)
    assert path.read_bytes() == old
    added = add_photos(path, folder)
    assert added.photos == {"grey": 4}, "what a killed process leaves is not in the way"
    undo(path)
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != "other.model") == ["more", "my.model"]


def load_model_from(content: bytes, folder: Path) -> Method:
    (folder / "other.model").write_bytes(content)
    return load_model(folder / "other.model")


def _without_times(content: bytes, folder: Path) -> list[str]:
    method = load_model_from(content, folder)
    return [fingerprint(method, task) for task in range(len(method.tasks))]


def _die_at(moment: str, model: Path) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "set aside":
        os.link = die  # type: ignore[assignment]
    elif moment == "writing":
        os.fsync = die  # type: ignore[assignment]
    else:
        honest = Path.replace

        def replace(self: Path, target: Path) -> Path:
            if target == model and moment == "before renaming":
                die()
            honest(self, target)
            if target == model:
                die()
            return target

        Path.replace = replace  # type: ignore[assignment, method-assign]
