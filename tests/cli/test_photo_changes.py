"""What people do after the first lesson: names, merged classes, undo, zip files, hints and mistakes."""

from __future__ import annotations

import json
import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from cli.test_photos import Clom
from clom import machine
from clom.cli.verify import EXIT_CHANGED
from clom.cli.watch_folder import SECONDS_BETWEEN_LOOKS
from clom.photos import presets as create
from clom.storage.model_file import load_model
from photos.pictures import ncm, write_pictures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(create, "new_method", lambda method="ncm", backbone="", seed=0: ncm(seed))
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Clom:
    return Clom(capsys)


@pytest.fixture
def taught(call: Clom, elsewhere: Path) -> Clom:
    """my.model knows red and green as 'leaves', then blue and grey as 'sea'."""
    write_pictures(elsewhere / "leaves", "red", "green", count=8)
    write_pictures(elsewhere / "sea", "blue", "grey", count=8)
    for folder in ("leaves", "sea"):
        assert call("learn", "my.model", folder) == 0
    return call


def packed(folder: str) -> str:
    return shutil.make_archive(folder, "zip", folder)


def test_renaming_merging_and_undoing(taught: Clom, elsewhere: Path) -> None:
    content = (elsewhere / "my.model").read_bytes()
    assert taught("rename", "my.model", "red", "crimson") == 0
    assert taught.out == "The class 'red' is now 'crimson'.\n"
    assert taught("undo", "my.model") == 0
    assert taught.out == "my.model is as it was before its last change.\nAs before: 'leaves'\n"
    assert (elsewhere / "my.model").read_bytes() == content
    assert taught("rename", "my.model", "sea", "ocean", "--task") == 0
    assert taught("merge", "my.model", "grey", "blue") == 0
    assert "'grey' is now answered as 'blue'" in taught.out
    assert taught("verify", "my.model") == 0
    assert taught("inspect", "my.model") == 0
    assert "ocean" in taught.out
    assert re.search(r"grey \([^)]*\), answered as blue", taught.out)
    assert taught("predict", "my.model", "sea", "--false-rejection=0", "--json") == 0
    said = {guess["class_name"] for answer in json.loads(taught.out)["answers"] for guess in answer["guesses"]}
    assert "grey" not in said
    assert taught("undo", "my.model") == 0
    assert load_model(elsewhere / "my.model").tasks[1].merged == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rename", "my.model", "rad", "crimson"], "Did you mean 'red'"),
        (["rename", "my.model", "sea", "ocean"], "no class 'sea'"),
        (["rename", "my.model", "red", "a\x07b"], "cannot be shown"),
        (["rename", "my.model", "see", "ocean", "--task"], "Did you mean 'sea'"),
        (["merge", "my.model", "red", "red"], "one class already"),
        (["merge", "my.model", "red", "bleu"], "Did you mean 'blue'"),
        (["undo", "absent.model"], "There is no file"),
        (["undo", "leaves/red/0.png"], "nothing to undo"),
        (["learn", "my.model", "bad.zip"], "cannot be read as a zip file"),
        (["learn", "my.model", "evil.zip"], "leads out of the zip file"),
        (["learn", "my.model", "leaves.zip"], "has a task 'leaves' already"),
        (["learn", "my.model", "more", "--mistakes=leaves"], "is a folder"),
        (["learn", "my.model", "more", "--check", "--mistakes=x.html"], "cannot be used together"),
        (["predict", "my.model", "more/odd.png", "--mistakes=x.html"], "none of the photos is in a folder named"),
        (["predict", "my.model", "bad.zip"], "None of 1 files"),
        (["learn", "my.model", "more", "--add"], "no class 'violet'"),
        (["learn", "my.model", "leaves", "--add", "--name=x"], "cannot be used together"),
        (["learn", "absent.model", "leaves", "--add"], "There is no file"),
        (["learn", "my.model", "leaves/red/0.png", "--watch"], "is a file"),
        (["correct", "my.model", "rad", "leaves/red/0.png"], "Did you mean 'red'"),
        (["correct", "my.model", "red", "absent.png"], "absent.png: there is no such file"),
        (["correct", "my.model", "red"], "No photos given"),
        (["correct", "my.model", "red", "bad.zip"], "None of the photos can be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_cost_nothing(taught: Clom, elsewhere: Path, arguments: list[str], expected: str) -> None:
    (elsewhere / "bad.zip").write_bytes(b"no zip")
    write_pictures(elsewhere / "more", "violet", "white")
    shutil.copy("more/white/0.png", "more/odd.png")
    packed("leaves")
    with zipfile.ZipFile("evil.zip", "w") as archive:
        archive.writestr("../../evil.png", b"x")
    before = (elsewhere / "my.model").read_bytes()
    assert taught(*arguments) == 2
    assert taught.err.splitlines()[-1].startswith("clom: ")
    assert expected in taught.err
    assert (elsewhere / "my.model").read_bytes() == before
    assert not (elsewhere / "x.html").exists()


def test_a_zip_file_is_learned_and_asked_about_like_a_folder(call: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "leaves", "red", "green", count=8)
    packed("leaves")
    assert call("learn", "my.model", "leaves.zip") == 0
    assert call.out.startswith("'leaves': 2 classes, 16 photos")
    assert call("learn", "other.model", "leaves") == 0
    one, two = (load_model(elsewhere / name) for name in ("my.model", "other.model"))
    assert [task.record.fingerprint for task in one.tasks if task.record] == [
        task.record.fingerprint for task in two.tasks if task.record
    ]
    assert call("predict", "my.model", "leaves.zip", "leaves/red/0.png") == 0
    assert "leaves.zip/green/0.png" in call.out
    assert "17 are in folders named after a class" in call.out


def test_more_photos_of_known_classes(taught: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "more", "grey", count=10, seed=5)
    assert taught("learn", "my.model", "more", "--add", "--check") == 0
    assert taught.out.startswith("'more photos': 1 class, 10 photos")
    shutil.copy("my.model", "old.model")
    assert taught("learn", "my.model", "more", "--add") == 0
    assert "Added photos: grey 10." in taught.out
    assert re.search(r"\d+ of 10 were answered right before, \d+ are now, each by a fit without it.", taught.out)
    assert "Changed: sea.\nBit-identical: leaves.\n" in taught.out
    assert taught("verify", "my.model", "--against=old.model") == EXIT_CHANGED
    assert "'leaves': identical" in taught.out
    assert "'sea': changed" in taught.out
    assert taught("verify", "my.model") == 0
    packed("more")
    assert taught("learn", "my.model", "more.zip", "--add") == 0
    assert "Added photos: grey 10." in taught.out


def test_a_wrong_answer_is_corrected(taught: Clom, elsewhere: Path) -> None:
    assert taught("correct", "my.model", "red", "sea/blue/0.png", "sea/blue/1.png") == 0
    lines = taught.out.splitlines()
    assert re.fullmatch(r"blue/0.png: \w+ before, \w+ now", lines[0])
    assert "Added photos: red 2." in lines
    assert "Changed: leaves." in lines


def test_watching_a_folder(taught: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds pass at every look; then somebody presses Ctrl-C."""
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            write_pictures(elsewhere / "inbox", "violet", count=6)
        if looks == 6:
            write_pictures(elsewhere / "inbox", "white", "red", count=6)
        if looks > 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "monotonic", lambda: SECONDS_BETWEEN_LOOKS * looks)
    monkeypatch.setattr(time, "sleep", sleep)
    assert taught("learn", "my.model", "inbox", "--watch") == 130
    assert taught.out.startswith("Watching inbox.")
    assert taught.out.count("Waiting: a new task needs") == 1
    assert "Learned 'inbox'" in taught.out
    assert "Added photos: red 6." in taught.out
    assert taught.out.index("Waiting") < taught.out.index("Learned") < taught.out.index("Added")
    assert [task.name for task in load_model(elsewhere / "my.model").tasks] == ["leaves", "sea", "inbox"]


def test_hints_are_given_before_learning(call: Clom, elsewhere: Path) -> None:
    folder = write_pictures(elsewhere / "leaves", "red", "green", count=5)
    for name in ("red", "green"):
        for number in range(3):
            shutil.copy(folder / "red" / "0.png", folder / name / f"copy{number}.png")
    assert call("learn", "my.model", "leaves", "--check") == 0
    lines = call.out.splitlines()
    assert lines[1].startswith("Hint: One photo is in two classes: green/copy0.png and red/0.png.")
    assert "5 photos are copies of another" in lines[2]
    assert lines[3] == "Nothing was learned: this was a check."
    assert not (elsewhere / "my.model").exists()
    assert call("learn", "my.model", "leaves") == 0
    assert call.out.index("One photo is in two classes") < call.out.index("Learned 'leaves'")


def test_photos_without_problems(call: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "leaves", "red", "green", count=5)
    assert call("learn", "my.model", "leaves", "--check") == 0
    assert call.out.splitlines()[1:] == ["No problems found."]


def test_mistakes_are_shown_and_written(taught: Clom, elsewhere: Path) -> None:
    assert taught("predict", "my.model", "sea", "leaves", "--mistakes=out/m.html", "--false-rejection=0.5") == 0
    right = re.search(r"32 are in folders named after a class: (\d+\.\d)% of these are correct", taught.out)
    assert right is not None
    wrong = 32 - round(32 * float(right[1]) / 100)
    assert wrong > 0
    assert "Most confused: " in taught.out
    assert f"Wrote the {wrong} mistakes on 32 photos to out/m.html." in taught.err
    assert f"32 photos whose class is known, {wrong} answered wrong" in (elsewhere / "out" / "m.html").read_text()
    write_pictures(elsewhere / "more", "violet", "white", count=10)
    assert taught("learn", "my.model", "more", "--mistakes=held.html") == 0
    said = re.search(r"Wrote the (\d+) mistakes on (\d+) held-out photos to held.html", taught.out)
    assert said is not None
    text = (elsewhere / "held.html").read_text()
    assert f"{said[2]} photos whose class is known, {said[1]} answered wrong" in text
    assert text.count("data:image/jpeg") == int(said[1])
