"""The photo commands as a person meets them, with small random networks in place of the pretrained one."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from clom import machine
from clom.cli import main
from clom.locks import Lock
from clom.methods.families.base import LearnedTask, Method
from clom.nets.pretrained.efficientnet_lite import find_weights
from clom.photos import presets as create
from clom.storage.model_file import load_model, save_model
from data.test_folders import bomb, noise
from photos.pictures import CONV, clom, ncm, write_pictures

REAL = create.new_method
PAGE = Path(__file__).parents[2] / "docs" / "photos.md"


def small(method: str = "clom", backbone: str = "efficientnet-lite0", seed: int = 0) -> Method:
    return ncm(seed) if method == "ncm" else clom(seed, CONV)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(create, "new_method", small)
    return tmp_path


class Clom:
    """Calls the program in this process; `code`, `out` and `err` are those of the last call."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> int:
        self.code = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            self.code = end.code if isinstance(end.code, int) else int(end.code is not None)
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.err
        return self.code


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Clom:
    return Clom(capsys)


@pytest.fixture
def taught(call: Clom, elsewhere: Path) -> Clom:
    """my.model knows red and green as 'leaves'."""
    write_pictures(elsewhere / "leaves", "red", "green", count=8)
    assert call("learn", "my.model", "leaves", "--method=ncm") == 0
    return call


def test_learning_says_what_happens_and_what_to_do_next(taught: Clom, elsewhere: Path) -> None:
    lines = taught.out.splitlines()
    assert lines[0] == (
        "'leaves': 2 classes, 16 photos; all are learned from, and accuracy is measured by cross-validation."
    )
    assert lines[1] == "my.model stays unchanged until training is complete."
    assert any(re.fullmatch(r"Learned 'leaves' in .*: green, red.", line) for line in lines)
    assert any(re.fullmatch(r"Validation accuracy \d+\.\d% on 16 held-out photos.", line) for line in lines)
    assert "clom predict my.model" in taught.out
    assert "\x1b" not in taught.out
    write_pictures(elsewhere / "sea", "blue", "grey")
    assert taught("learn", "my.model", "sea") == 0
    assert "among all 4 classes of the model" in taught.out


def test_capacity_is_told_where_there_is_one(call: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "leaves", "red", "green")
    assert call("learn", "new.model", "leaves") == 0
    assert re.search(r"Capacity in use after 1 tasks?: conv1 \d+%, conv2 \d+%", call.out)
    assert call("inspect", "new.model") == 0
    assert "Units in use: conv1" in call.out


def test_growth_is_told(call: Clom, elsewhere: Path) -> None:
    method = clom(0, CONV)
    method.open_task(LearnedTask("first", ("a", "b")))
    method.open_task(LearnedTask("second", ("c",), units={"conv1": 11, "conv2": 8, "conv3": 9, "fc": 12}))
    save_model(elsewhere / "grown.model", method)
    assert call("inspect", "grown.model") == 0
    assert "Units appended since the first task: conv1 8 to 11, conv3 8 to 9\n" in call.out
    assert call("forget", "grown.model", "second") == 0
    assert call("inspect", "grown.model") == 0
    assert "appended" not in call.out


def test_predicting_files_folders_and_patterns(taught: Clom, elsewhere: Path) -> None:
    (elsewhere / "leaves" / "red" / "broken.jpg").write_bytes(b"nothing")
    assert taught("predict", "my.model", "leaves/red/0.png", "leaves/green", "leaves/*/1.png", "absent.png") == 0
    lines = taught.out.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [
        "leaves/red/0.png",
        *(f"leaves/green/{number}.png" for number in range(8)),
        "leaves/red/1.png",
    ]
    assert re.match(r"10 photos, \d+ unknown.", lines[-2])
    assert lines[-1].startswith("10 are in folders named after a class")
    assert taught.err.splitlines() == ["Skipped 1 file:", "  absent.png: there is no such file"]
    assert taught("predict", "my.model", "leaves") == 0
    assert "broken.jpg: not a picture" in taught.err


def test_nothing_readable_is_a_failure(taught: Clom, elsewhere: Path) -> None:
    (elsewhere / "notes.txt").write_text("hello")
    assert taught("predict", "my.model", "notes.txt", "absent.png") == 2
    assert "None of 2 files could be read" in taught.err
    assert "notes.txt: not a picture" in taught.err


def test_predicting_as_json(taught: Clom) -> None:
    assert taught("predict", "my.model", "leaves/red", "absent.png", "--json", "--top=1", "--false-rejection=0") == 0
    everything = json.loads(taught.out)
    assert everything["unreadable"] == [{"file": "absent.png", "reason": "there is no such file"}]
    assert everything["false_rejection"] == 0
    assert len(everything["answers"]) == 8
    answer = everything["answers"][0]
    assert answer["file"] == "leaves/red/0.png"
    assert [guess["task"] for guess in answer["guesses"]] == ["leaves"]
    assert answer["unknown"] is False
    assert 0 < answer["guesses"][0]["confidence"] <= 1


def test_predicting_to_a_table(taught: Clom, elsewhere: Path) -> None:
    assert taught("predict", "my.model", "leaves/red/0.png", "absent.png", "--csv=out/answers.csv", "--top=9") == 0
    with (elsewhere / "out" / "answers.csv").open(newline="") as file:
        good, bad = csv.DictReader(file)
    assert good["file"] == "leaves/red/0.png"
    assert good["answer"] in ("red", "green", "unknown")
    assert float(good["confidence_1"]) + float(good["confidence_2"]) == pytest.approx(1, abs=1e-3)
    assert (good["task_1"], good["problem"]) == ("leaves", "")
    assert (bad["answer"], bad["problem"]) == ("", "there is no such file")


def test_everything_is_unknown_at_a_high_enough_rate(taught: Clom) -> None:
    assert taught("predict", "my.model", "leaves/red/0.png", "--false-rejection=0.99") == 0
    assert "unknown (most like" in taught.out or "1 photo, 0 unknown" in taught.out
    assert taught("predict", "my.model", "leaves/red/0.png", "--task=leaves") == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["predict", "my.model", "leaves", "--task=leafs"], "Did you mean 'leaves'"),
        (["predict", "my.model", "leaves", "--false-rejection=1.5"], "false-rejection"),
        (["predict", "my.model", "leaves", "--top=0"], "top"),
        (["predict", "none.model", "leaves"], "There is no file none.model"),
        (["forget", "my.model", "leavse"], "Did you mean 'leaves'"),
        (["learn", "my.model", "leaves"], "has a task 'leaves' already"),
        (["learn", "my.model", "leaves", "--name=more"], "knows these classes already"),
        (["learn", "my.model", "nowhere"], "nowhere"),
        (["learn", "my.model", "leaves/red"], "leaves/red"),
        (["learn", "leaves", "leaves"], "is a folder"),
        (["verify", "my.model", "--against=none.model"], "There is no file none.model"),
        (["inspect", "leaves/red/0.png"], "cannot be read as a model"),
        (["example-photos", "leaves"], "not an empty folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes(taught: Clom, elsewhere: Path, arguments: list[str], expected: str) -> None:
    before = (elsewhere / "my.model").read_bytes()
    assert taught(*arguments) == 2
    assert taught.err.startswith("clom: ")
    assert expected in taught.err
    assert (elsewhere / "my.model").read_bytes() == before


def test_inspecting(taught: Clom, elsewhere: Path) -> None:
    assert taught("inspect", "my.model") == 0
    for part in ("ncm on efficientnet-lite0", "32 x 32", "leaves", "green (8); red (8)"):
        assert part in taught.out
    assert taught("inspect", "my.model", "--json") == 0
    about = json.loads(taught.out)
    assert about["tasks"][0]["classes"] == ["green", "red"]
    assert about["tasks"][0]["fingerprint"][:8] not in ("", None)
    assert taught("forget", "my.model", "leaves") == 0
    assert taught("inspect", "my.model") == 0
    assert "learned nothing yet" in taught.out
    assert taught("predict", "my.model", "leaves") == 2
    assert "learned nothing yet" in taught.err


def test_verifying_and_forgetting(taught: Clom, elsewhere: Path) -> None:
    shutil.copy("my.model", "old.model")
    write_pictures(elsewhere / "sea", "blue", "grey")
    assert taught("learn", "my.model", "sea") == 0
    assert taught("verify", "my.model", "--against=old.model") == 0
    assert "'leaves': identical" in taught.out
    assert "'sea': new" in taught.out
    assert taught("verify", "my.model") == 0
    assert "the outputs of 2 tasks are bit-identical" in taught.out
    assert taught("forget", "my.model", "leaves") == 0
    assert "Forgot 'leaves': green, red." in taught.out
    assert taught("verify", "my.model", "--against=old.model") == 3  # not 1, which is a bug of the program
    assert "'leaves': missing" in taught.out


def test_names_are_shown_and_not_obeyed(taught: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "sea", "[red]", "[bold] :smile:")
    (elsewhere / "sea" / "[red]" / "0.png").rename(elsewhere / "sea" / "[red]" / "\x1b[2J\n.png")
    assert taught("learn", "my.model", "sea", "--name=[/b] stuff") == 0
    assert "Learned '[/b] stuff' in" in taught.out
    for words in (["inspect", "my.model"], ["predict", "my.model", "sea"], ["verify", "my.model"]):
        assert taught(*words) == 0
        assert "[red]" in taught.out or "'[/b] stuff'" in taught.out
        assert "\x1b" not in taught.out + taught.err
    assert taught("predict", "my.model", "sea", "--task=\x1b[2J") == 2
    assert r"There is no task '\x1b[2J'" in taught.err
    assert taught("forget", "my.model", "[/b] stuff") == 0
    assert "[bold] :smile:" in taught.out


def test_a_model_that_is_being_taught(taught: Clom, elsewhere: Path) -> None:
    write_pictures(elsewhere / "sea", "blue", "grey")
    with Lock(elsewhere / "my.model"):
        assert taught("learn", "my.model", "sea") == 2
        assert "being taught by process" in taught.err
        assert taught("forget", "my.model", "leaves") == 2
        assert taught("predict", "my.model", "leaves/red/0.png") == 0, "asking is always possible"


def test_a_folder_full_of_traps(call: Clom, elsewhere: Path) -> None:
    """Learns from what is good, names what is bad, and needs no memory for a bomb."""
    folder = write_pictures(elsewhere / "odd", "good", "strange", count=5)
    odd = folder / "strange"
    noise(1).save(odd / "whole.jpg", quality=90)
    content = (odd / "whole.jpg").read_bytes()
    (odd / "whole.jpg").unlink()
    (odd / "truncated.jpg").write_bytes(content[: len(content) // 3])
    (odd / "renamed.jpg").write_text("I am a shopping list")
    (odd / "empty.png").touch()
    (odd / "bomb.png").write_bytes(bomb(30_000, 30_000))
    noise(2).convert("P").save(odd / "animated.gif", save_all=True, append_images=[noise(3).convert("P")])
    noise(4).convert("CMYK").save(odd / "print.jpg")
    Image.new("I;16", (40, 30), 30_000).save(odd / "deep.png")
    palette = noise(5).convert("P")
    palette.save(odd / "see-through.png", transparency=3)
    before = machine.peak_memory_bytes()
    assert call("learn", "my.model", "odd", "--method=ncm") == 0
    after = machine.peak_memory_bytes()
    assert "'odd': 2 classes, 14 photos" in call.out
    assert "Skipped 4 files:" in call.out
    for name, reason in (
        ("truncated.jpg", "damaged"),
        ("renamed.jpg", "not a picture"),
        ("empty.png", "empty"),
        ("bomb.png", "too large"),
    ):
        assert re.search(rf"strange/{name}: .*{reason}", call.out), name
    record = load_model(elsewhere / "my.model").tasks[0].record
    assert record is not None
    assert record.images == record.validation_images == (5, 9)
    assert before is None or after is None or after - before < 400e6
    # The same files are no danger when asked about.
    assert call("predict", "my.model", "odd/strange") == 0
    assert "Skipped 4 files:" in call.err


def test_links_to_photos_elsewhere_are_told_and_can_be_skipped(taught: Clom, elsewhere: Path) -> None:
    folder = write_pictures(elsewhere / "sea", "blue", "grey", count=6)
    (folder / "blue" / "linked.png").symlink_to(next((elsewhere / "leaves" / "red").iterdir()))
    for option, told in (
        ("--links", "1 photo is a link to a file outside the folder"),
        ("--no-links", "outside the folder"),
    ):
        assert taught("predict", "my.model", "sea", option) == 0
        assert told in taught.err
        assert ("Skipped 1 file:" in taught.err) == (option == "--no-links")
    (elsewhere / "copy.model").write_bytes((elsewhere / "my.model").read_bytes())
    assert taught("learn", "copy.model", "sea", "--no-links") == 0
    assert "12 photos" in taught.out
    assert "linked.png: a link to a file outside the folder" in taught.out
    assert taught("learn", "my.model", "sea") == 0
    assert "13 photos" in taught.out
    assert "1 photo is a link to a file outside the folder; --no-links skips such links." in taught.out


# --- the page --------------------------------------------------------------------------------------------------------


def page_commands() -> list[list[str]]:
    """What the page tells people to type, in order."""
    lines = re.findall(r"^    (clom .*|cp .*)$", PAGE.read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def follow(call: Clom) -> dict[str, str]:
    """Types it; what each command printed."""
    printed = {}
    for program, *arguments in page_commands():
        if program == "cp":
            shutil.copy(*arguments)
        else:
            assert call(*arguments) == 0, (arguments, call.err)
            printed[" ".join(arguments)] = call.out
    return printed


def test_the_page_can_be_followed_word_by_word(call: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "new_method", lambda **options: ncm(options.get("seed", 0)))
    printed = follow(call)
    assert {words.split()[0] for words in printed} >= {
        "example-photos", "learn", "predict", "inspect", "verify", "forget", "correct", "rename", "merge", "undo"
    }  # fmt: skip
    assert "Bit-identical" not in printed["learn my.model drawn/new --add"], "both tasks got photos"
    assert printed["undo my.model"].endswith("As before: 'shapes'\n")
    assert printed["learn other.model drawn/shapes --check"].splitlines()[-1] == "No problems found."


@pytest.mark.slow
@pytest.mark.parametrize("method", ["experts", "ncm"])
def test_the_page_is_true_with_the_pretrained_network(call: Clom, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    if find_weights() is None:
        pytest.skip("the pretrained weights are not installed")
    monkeypatch.setattr(create, "new_method", lambda seed=0: REAL(method=method, seed=seed))
    printed = follow(call)
    asked = printed["predict my.model drawn/new drawn/other"]
    right = re.search(r"folders named after a class: (\d+\.\d)% of these are correct", asked)
    assert right is not None
    assert float(right[1]) >= 80
    strange = [line for line in asked.splitlines() if line.startswith("drawn/other")]
    assert sum("unknown" in line for line in strange) >= 3
    assert "'shapes': identical" in printed["verify my.model --against before.model"]
