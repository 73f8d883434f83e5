"""Teaching a model file: made or extended in one piece, told what happens, and never damaged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
import torch

from clom.data import folders
from clom.data.folders import Pictures
from clom.errors import UserError
from clom.learning.progress import Progress
from clom.locks import Lock
from clom.methods.families.base import Method
from clom.nets import ResNet18Settings
from clom.photos import presets as create
from clom.photos import teach as teach_module
from clom.photos.teach import LessonPlan, Listener, teach
from clom.storage.describe import describe
from clom.storage.fingerprint import fingerprint
from clom.storage.model_file import load_model, save_model
from photos.pictures import CONV, SIDE, clom, coloured, ncm, pictures, write_pictures


def small(method: str = "clom", backbone: str = "efficientnet-lite0", seed: int = 0) -> Method:
    """Stands for the real maker of models."""
    if backbone == "resnet-18":
        return clom(seed, ResNet18Settings(width=2))
    return ncm(seed) if method == "ncm" else clom(seed)


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "new_method", small)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.model"


def given(*names: str) -> Pictures:
    return pictures(*names, count=6)


def files(folder: Path) -> list[str]:
    """All but the version that is kept for `undo`."""
    return sorted(file.name for file in folder.iterdir() if ".before-" not in file.name)


def test_a_folder_makes_a_model_and_the_next_one_extends_it(path: Path, tmp_path: Path) -> None:
    first = teach(path, write_pictures(tmp_path / "warm", "red", "grey", count=10), method="ncm", seed=4)
    assert (first.task, first.class_names, first.created, first.n_tasks) == ("warm", ("grey", "red"), True, 1)
    second = teach(path, write_pictures(tmp_path / "cold", "blue", "green", "violet"), "seas")
    assert (second.task, second.created, second.n_tasks, second.n_classes) == ("seas", False, 2, 5)
    model = load_model(path)
    assert (model.name, model.seed) == ("ncm", 4)
    assert [(task.name, task.class_names) for task in model.tasks] == [
        ("warm", ("grey", "red")),
        ("seas", ("blue", "green", "violet")),
    ]
    assert files(tmp_path) == ["cold", "my.model", "warm"]


def test_the_record_says_what_was_learned(path: Path) -> None:
    """Of 10 pictures a class two are held out, of 6 one."""
    teach(path, lambda size: pictures("red", "green", count=10), "leaves", method="clom")
    teach(path, lambda size: pictures("blue", "grey", count=6), "sea")
    leaves, sea = (task.record for task in load_model(path).tasks)
    assert leaves is not None
    assert sea is not None
    assert (leaves.images, leaves.validation_images, sea.images, sea.validation_images) == (
        (8, 8), (2, 2), (5, 5), (1, 1)
    )  # fmt: skip
    assert timedelta(0) <= datetime.now(UTC) - sea.learned < timedelta(minutes=5)
    assert sea.learned.utcoffset() == timedelta(0)
    assert len(leaves.belonging) == 4
    model = load_model(path)
    assert [task.record.fingerprint for task in model.tasks if task.record] == [
        fingerprint(model, 0),
        fingerprint(model, 1),
    ]


def test_accuracies_and_belonging_are_those_of_the_held_out_pictures(path: Path) -> None:
    def source(size: int) -> Pictures:
        assert size == SIDE
        return pictures("red", "green", count=10)

    lesson = teach(path, source, "leaves", method="clom")
    held = source(SIDE).task("leaves", seed=0).validation
    (block,), belonging = load_model(path).blocks_and_belonging(held.pixels)
    (record,) = (task.record for task in load_model(path).tasks)
    assert record == lesson.record
    assert not record.cross_fitted
    assert record.belonging == pytest.approx(sorted(belonging[:, 0].tolist()), abs=1e-5)
    assert record.accuracy == (block.argmax(1) == held.labels).double().mean().item()


def test_closed_form_methods_learn_from_all_pictures_and_are_judged_without_each(path: Path) -> None:
    """Scores of pictures that a fit has not seen are lower than those of the pictures that it was fitted to."""
    lesson = teach(path, lambda size: pictures("red", "green", count=10), "leaves", method="ncm")
    record = lesson.record
    assert record.cross_fitted
    assert (record.images, record.validation_images, len(record.belonging)) == ((10, 10), (10, 10), 20)
    own = load_model(path).belonging(pictures("red", "green", count=10).images.pixels)[:, 0]
    assert sum(record.belonging) < float(own.sum())
    assert lesson.held_out.mistakes.n_photos == len(lesson.held_out.pixels) == 20
    assert set(lesson.held_out.files) == set(pictures("red", "green", count=10).file_names)


def test_a_missing_folder_is_noticed_before_the_model_is_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(path, lambda size: given("red", "green"), "leaves", method="ncm")
    monkeypatch.setattr(teach_module, "load_model", lambda path: pytest.fail("the model was loaded"))
    with pytest.raises(UserError, match="There is no folder nowhere"):
        teach(path, Path("nowhere"))


def test_the_listener_hears_files_a_plan_and_steps_in_this_order(path: Path, tmp_path: Path) -> None:
    heard: list[object] = []
    listener = Listener(lambda done, total: heard.append((done, total)), heard.append, heard.append)
    folder = write_pictures(tmp_path / "warm", "red", "grey", count=5)
    (folder / "red" / "broken.png").write_bytes(b"no picture")
    lesson = teach(path, folder, method="ncm", listener=listener)
    assert heard[10] == (11, 11)
    plan = heard[11]
    assert isinstance(plan, LessonPlan)
    assert (plan.task, plan.n_train, plan.n_validation) == ("warm", 10, 0)
    assert [file.path.name for file in plan.skipped] == ["broken.png"]
    assert lesson.skipped == plan.skipped
    assert heard[12:]
    assert all(isinstance(step, Progress) for step in heard[12:])


def test_what_is_to_be_learned_is_checked_once_and_before_any_file_is_decoded(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = write_pictures(tmp_path / "warm", "red", "grey"), list[str]()

    def count(module: ModuleType, name: str) -> None:
        honest = getattr(module, name)

        def counted(*args: object, **options: object) -> object:
            calls.append(name)
            return honest(*args, **options)

        monkeypatch.setattr(module, name, counted)

    count(teach_module, "check_new")
    count(folders, "_classes")
    count(folders, "read_sized_picture")
    teach(path, folder, method="ncm")
    assert calls[:3] == ["_classes", "check_new", "read_sized_picture"]
    assert (calls.count("_classes"), calls.count("check_new")) == (1, 1)
    calls.clear()
    with pytest.raises(UserError, match="knows these classes already"):
        teach(path, folder, "other")
    assert calls == ["_classes", "check_new"]
    calls.clear()
    teach(path, lambda size: given("blue", "green"), "cold")
    assert calls == ["check_new"]


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to("real.model")
    teach(path, lambda size: given("red", "green"), "one", method="ncm")
    teach(path, lambda size: given("blue", "grey"), "two")
    assert path.is_symlink()
    assert len(load_model(tmp_path / "real.model").tasks) == 2


def test_an_extended_model_is_the_one_that_was_never_saved(path: Path) -> None:
    """Learning from the file goes on exactly as learning in memory would."""
    for name, classes in (("one", ("red", "green")), ("two", ("blue", "grey"))):
        teach(path, lambda size, classes=classes: given(*classes), name)  # type: ignore[misc]
    unbroken = clom()
    for name, classes in (("one", ("red", "green")), ("two", ("blue", "grey"))):
        unbroken.learn(given(*classes).task(name))
    images = coloured("red", 4, 9)
    assert all(
        torch.equal(one, two) for one, two in zip(load_model(path).blocks(images), unbroken.blocks(images), strict=True)
    )


# --- refusals --------------------------------------------------------------------------------------------------------


def refused(path: Path, *arguments: object, **options: object) -> str:
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(UserError) as problem:
        teach(path, *arguments, **options)  # type: ignore[arg-type]
    assert (path.read_bytes() if path.exists() else None) == before
    return str(problem.value)


@pytest.fixture
def taught(path: Path) -> Path:
    teach(path, lambda size: given("red", "green"), "leaves", method="ncm")
    return path


def test_a_task_of_that_name(taught: Path, tmp_path: Path) -> None:
    text = refused(taught, write_pictures(tmp_path / "leaves", "blue", "grey"))
    assert "--name" in text
    assert "clom forget" in text


def test_a_class_that_it_knows_is_refused_before_anything_is_read(taught: Path, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "more", "red", "blue", count=1)  # too few, which reading would find out
    assert "'red' (task 'leaves')" in refused(taught, folder)
    assert "'red' (task 'leaves')" in refused(taught, lambda size: given("blue", "red"), "more")


@pytest.mark.parametrize("make", [lambda folder: None, lambda folder: folder.mkdir(), lambda folder: folder.touch()])
def test_folders_that_hold_nothing_make_no_model(path: Path, tmp_path: Path, make: object) -> None:
    make(tmp_path / "empty")  # type: ignore[operator]
    refused(path, tmp_path / "empty", method="ncm")
    assert not path.exists()


def test_one_class_only(path: Path, tmp_path: Path) -> None:
    assert "only one class" in refused(path, write_pictures(tmp_path / "one", "red"), method="ncm")


def test_options_that_contradict_the_model(taught: Path, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "more", "blue", "grey")
    assert "method ncm, not slda" in refused(taught, folder, method="slda")
    assert "seed 0, not 3" in refused(taught, folder, seed=3)
    assert "resnet18" in refused(taught, folder, backbone="resnet-18")
    teach(taught, folder, method="ncm", backbone="efficientnet-lite0", seed=0)


def test_what_is_no_model(path: Path, tmp_path: Path) -> None:
    path.write_text("my diary")
    assert "cannot be read as a model" in refused(path, write_pictures(tmp_path / "more", "blue", "grey"))


def test_a_failure_while_learning(taught: Path) -> None:
    def fail(step: Progress) -> None:
        raise KeyboardInterrupt

    before = taught.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        teach(taught, lambda size: given("blue", "grey"), "sea", listener=Listener(on_step=fail))
    assert taught.read_bytes() == before
    assert files(taught.parent) == ["my.model"]


def test_the_same_lesson_again_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same numbers as an unbroken lesson; another lesson begins at its beginning."""
    monkeypatch.setattr("clom.storage.checkpoints.CheckpointFolder.due", lambda self: True)
    whole, broken = tmp_path / "whole" / "my.model", tmp_path / "broken" / "my.model"
    for path in (whole, broken):
        save_model(path, clom(net=CONV, epochs=3))
    teach(whole, lambda size: given("blue", "grey"), "sea")
    steps: list[int] = []

    def fail(step: Progress) -> None:
        steps.append(step.done)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teach(broken, lambda size: given("blue", "grey"), "sea", listener=Listener(on_step=fail))
    teach(broken, lambda size: given("blue", "grey"), "sea", listener=Listener(on_step=fail))
    assert steps[:4] == [1, 2, 3, 3]
    assert files(broken.parent) == ["my.model"]
    one, other = (load_model(path).state_dict() for path in (whole, broken))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_leftovers_of_killed_processes_are_removed(taught: Path) -> None:
    (taught.parent / ".my.model.123.tmp").write_bytes(b"half a model")
    others = [".my.model.v2.123.tmp", ".my.models.123.tmp"]
    for name in others:
        (taught.parent / name).write_bytes(b"of another model, which is being saved")
    teach(taught, lambda size: given("blue", "grey"), "sea")
    assert files(taught.parent) == [*others, "my.model"]


def test_a_model_that_somebody_replaces_meanwhile_is_kept_beside_the_new_one(taught: Path) -> None:
    def replace(_: Progress) -> None:
        save_model(taught, clom())

    for name in ("my-2.model", "my-3.model"):
        with pytest.raises(UserError, match=rf"Another program changed .*{re.escape(name)}"):
            teach(taught, lambda size: given("blue", "grey"), f"sea {name}", listener=Listener(on_step=replace))
        assert load_model(taught).tasks == []  # as the other program left it
        assert load_model(taught.with_name(name)).tasks[-1].name == f"sea {name}"
    assert files(taught.parent) == ["my-2.model", "my-3.model", "my.model"]


def test_a_model_that_somebody_makes_meanwhile_is_kept(path: Path) -> None:
    def write(_: Progress) -> None:
        path.write_text("a diary")

    with pytest.raises(UserError, match=r"my-2\.model"):
        teach(path, lambda size: given("blue", "grey"), "sea", method="ncm", listener=Listener(on_step=write))
    assert path.read_text() == "a diary"
    assert [task.name for task in load_model(path.with_name("my-2.model")).tasks] == ["sea"]
    assert files(path.parent) == ["my-2.model", "my.model"]


def test_a_model_name_as_long_as_file_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 249)
    teach(path, lambda size: given("red", "green"), "one", method="ncm")
    teach(path, lambda size: given("blue", "grey"), "two")
    assert files(tmp_path) == [path.name]


def test_permissions_stay_as_they_are(taught: Path) -> None:
    taught.chmod(0o600)
    teach(taught, lambda size: given("blue", "grey"), "sea")
    assert taught.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "two\nlines"])
def test_names_that_a_terminal_would_obey_are_refused_before_anything_is_read(
    taught: Path, tmp_path: Path, name: str
) -> None:
    assert "control characters" in refused(taught, write_pictures(tmp_path / "sea", "blue", "grey", count=1), name)
    assert "control characters" in refused(taught, write_pictures(tmp_path / "air", "blue", name, count=1))
    assert "control characters" in refused(taught, lambda size: given("blue", name), "sea")


def test_a_second_teacher_is_refused(taught: Path, tmp_path: Path) -> None:
    with Lock(taught):
        assert f"being taught by process {os.getpid()}" in refused(taught, lambda size: given("blue", "grey"), "sea")


# --- names, descriptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "name"), [("bees/train", "bees"), ("bees", "bees"), ("bees/Photos", "bees")])
def test_names_that_say_something(path: Path, tmp_path: Path, folder: str, name: str) -> None:
    assert teach(path, write_pictures(tmp_path / folder, "red", "green"), method="ncm").task == name


def test_pictures_in_memory_are_numbered(path: Path) -> None:
    assert teach(path, lambda size: given("red", "green"), method="ncm").task == "task 1"
    assert teach(path, lambda size: given("blue", "grey")).task == "task 2"


def test_the_description_is_complete(taught: Path) -> None:
    about = describe(taught)
    assert (about["method"], about["backbone"], about["image_shape"]) == ("ncm", "efficientnet-lite0", [3, SIDE, SIDE])
    assert about["bytes"] == taught.stat().st_size
    (task,) = about["tasks"]
    assert (task["name"], task["classes"], task["images"]) == ("leaves", ["red", "green"], [6, 6])
    assert len(task["fingerprint"]) == 64


# --- killed ----------------------------------------------------------------------------------------------------------

KILLING = Path(__file__).with_name("killing.py")


def kill(tmp_path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(KILLING), str(tmp_path), *arguments], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_at_random_moments_and_at_the_worst_ones(tmp_path: Path) -> None:
    out = kill(tmp_path, "3")
    assert "3 random moments" in out
    assert "while writing: old" in out
    assert "before renaming: old" in out
    assert "after renaming: new" in out


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    assert "20 random moments" in kill(tmp_path, "20")
