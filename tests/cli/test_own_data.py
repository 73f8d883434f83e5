"""Pictures of one's own from the folder to the table, through the commands that docs/own-data.md shows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import plugin_files
from clom import machine
from clom.cli import main
from clom.data.catalog import SETS
from clom.experiments import estimate
from clom.experiments.grid import Cell, Outcome
from clom.experiments.run import RunResult, is_finished
from clom.reporting.figures import run_overview as figures
from clom.storage.tensors import read_tensors
from experiments.pictures import FOUR_TASKS, write_experiment, write_pictures

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
SMALL = (
    "\nnet: {kind: alexnet, channels: [4, 4, 6], kernels: [3, 3, 2], paddings: [1, 1, 0], pools: [2, 2, 1], hidden: 8}"
)
QUICK = ["--budget=smoke", "--method=finetune"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOM_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", no_picture)
    monkeypatch.setattr(Cell, "run", in_this_process)
    monkeypatch.setattr(estimate, "_SECONDS", 0.0)
    return tmp_path


def no_picture(made: RunResult) -> list[Path]:
    return [made.folder / "figure.svg", made.folder / "figure.png"]


def in_this_process(cell: Cell, *how: Any) -> Outcome:
    clom(*cell.command(*how[:6])[3:])
    return "finished" if is_finished(cell.folder) else "failed"


def clom(*arguments: str) -> int:
    """One command, in a process that knows no plug-in from before."""
    with plugin_files.clean(SETS), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code if isinstance(end.value.code, int) else int(end.value.code is not None)


# --- the page ---


def test_the_page_is_true_at_smoke_size(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page: its files are written and its commands run, with less to learn."""
    done = []
    for kind, text in steps():
        if kind == "yaml":
            write_file(elsewhere, text)
        elif kind == "command":
            words = at_smoke_size(shlex.split(text))
            code = clom(*words[1:]) if words[0] == "clom" else subprocess.run(words).returncode
            assert code == 0, f"{text}: {capsys.readouterr().err}"
            done.append(words[0] if words[0] != "clom" else words[1])
            said = capsys.readouterr().out
    assert done == [
        *("example-photos", "mkdir", "mv", "run", "doctor", "run", "resume", "report", "scores", "grid", "table"),
        *("run", "record", "table"),
    ]
    assert re.search(r"LwF\.R \| \**\d+\.\d", said), "the last table has a row of the last run"
    assert (elsewhere / "runs/my-clom-smoke-s0/report.html").is_file()
    assert clom("run", "my-own-way.yaml", "--method=derpp", "--budget=smoke") == 0
    config = yaml.safe_load((elsewhere / "runs/my-own-way-derpp-smoke-s0/config.yaml").read_text())
    assert (config["net"]["width"], config["settings"]["memory"]["size"]) == (12, 100)


def steps() -> list[tuple[str, str]]:
    block, command = r"^```(?P<kind>\w+)\n(?P<block>.*?)^```$", r"^    (?P<command>(?:clom|mkdir|mv) .*?)$"
    found = re.finditer(f"{block}|{command}", PAGE, re.M | re.S)
    return [(match["kind"] or "command", match["block"] or match["command"]) for match in found]


def write_file(folder: Path, text: str) -> None:
    name = text.partition("\n")[0].removeprefix("# ")
    content = yaml.safe_load(text)
    if "data" in content:
        content["data"]["pixels"] = 8
    else:
        content |= {"methods": [content["methods"][0], content["methods"][-1]], "budget": "smoke", "seeds": [0]}
    (folder / name).write_text(yaml.safe_dump(content))


def at_smoke_size(words: list[str]) -> list[str]:
    words = [word.replace("-cpu-", "-smoke-") for word in words]
    if words[1] == "example-photos":
        words += ["--per-class", "6"]
    if words[:2] in (["clom", "run"], ["clom", "table"]) and "--budget" not in words:
        words += ["--budget", "smoke"]
    return words


def test_the_page_names_every_setting_of_the_data() -> None:
    from clom.data.sources import DataSettings

    assert [name for name in DataSettings.model_fields if f"`{name}: " not in PAGE] == []


def test_the_page_lists_who_cannot_learn_a_single_class() -> None:
    from experiments.test_own_pictures import ONE_CLASS_IS_TOO_FEW

    line = next(line for line in PAGE.splitlines() if line.endswith("two classes in every task |"))
    assert set(re.findall(r"`([\w-]+)`", line)) == ONE_CLASS_IS_TOO_FEW


# --- runs ---


def test_a_run_s_folder_needs_neither_the_file_nor_the_working_folder(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_experiment(elsewhere / "deep" / "inside", more=SMALL)
    assert clom("run", str(path.relative_to(elsewhere)), *QUICK) == 0
    assert "60 pictures of 10 classes, colour" in capsys.readouterr().out
    first = elsewhere / "runs" / "mine-finetune-smoke-s0"
    second = elsewhere / "again"
    second.mkdir()
    shutil.copy(first / "config.yaml", second)
    path.unlink()
    monkeypatch.chdir("/")
    assert clom("resume", str(second)) == 0
    one, other = (read_tensors(folder / "model.safetensors")[0] for folder in (first, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_pictures_that_have_moved(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(elsewhere, more=SMALL)
    assert clom("run", str(path), *QUICK, "--out=run") == 0
    (elsewhere / "run" / "summary.json").unlink()
    (elsewhere / "pictures").rename(elsewhere / "moved")
    assert clom("resume", "run") == 2
    assert "There is no folder" in capsys.readouterr().err
    assert clom("resume", "run", "--data=moved") == 0


def test_other_pictures_than_at_the_beginning_are_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(elsewhere, more=SMALL)
    assert clom("run", str(path), *QUICK, "--out=run") == 0
    for name in ("summary.json", "model.safetensors", "metrics.jsonl", "scores.safetensors"):
        (elsewhere / "run" / name).unlink()
    (elsewhere / "pictures" / "moons" / "luna" / "0.png").unlink()
    assert clom("resume", "run") == 2
    assert "was started with other images" in capsys.readouterr().err


def test_a_recipe_makes_a_run_of_its_own(elsewhere: Path) -> None:
    path = write_experiment(elsewhere, more=SMALL)
    (elsewhere / "recipe.yaml").write_text("plan: {batch: 7}")
    assert clom("run", str(path), *QUICK) == 0
    assert clom("run", str(path), *QUICK, "--recipe=recipe.yaml") == 0
    plain, changed = sorted((elsewhere / "runs").iterdir(), key=lambda folder: len(folder.name))
    assert yaml.safe_load((plain / "config.yaml").read_text())["overrides"] == {}
    assert yaml.safe_load((changed / "config.yaml").read_text())["overrides"] == {"plan.batch": 7}


def test_a_grid_finds_experiments_beside_it(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("a", "b"):
        write_experiment(elsewhere / place, {"birds": ("wren", "tit")}, more=SMALL)
    (elsewhere / "a" / "grid.yaml").write_text(
        "experiments: [mine.yaml]\nmethods: [finetune, joint]\nbudget: smoke\nvariants: {'': {}, few: {plan.batch: 4}}"
    )
    assert clom("grid", "a/grid.yaml", "--ledger=ledger.jsonl") == 0
    assert sorted(folder.name for folder in (elsewhere / "runs").iterdir()) == [
        "mine-finetune-smoke-s0",
        "mine-finetune-smoke-s0-few",
        "mine-joint-smoke-s0",
        "mine-joint-smoke-s0-few",
    ]
    assert clom("figure", "til-curves", "--ledger=ledger.jsonl", "--budget=smoke", "--experiment=mine") == 0
    assert clom("table", "memory", "--ledger=ledger.jsonl", "--budget=smoke", "--experiment=mine") == 0
    (elsewhere / "a" / "grid.yaml").write_text("{experiments: [mine.yaml, ../b/mine.yaml], methods: [finetune]}")
    capsys.readouterr()
    assert clom("grid", "a/grid.yaml") == 2
    assert re.search(r"a/mine.yaml and .*b/mine.yaml are both called 'mine'", capsys.readouterr().err)


# --- data sets in code ---

LETTERS = """
import torch
from clom import DataSet, Images

def letters():
    pixels = torch.arange(24 * 64).reshape(24, 1, 8, 8).to(torch.uint8)
    images = Images(pixels, torch.arange(24) % 4)
    return DataSet("letters", tuple("abcd"), images, images)
"""


def test_a_data_set_in_a_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "deep").mkdir()
    (elsewhere / "deep" / "my_sets.py").write_text(LETTERS)
    (elsewhere / "deep" / "mine.yaml").write_text("data: {set: 'my_sets.py:letters', sizes: [2, 2]}" + SMALL)
    assert clom("run", "deep/mine.yaml", *QUICK, "--out=run") == 0
    config = yaml.safe_load((elsewhere / "run" / "config.yaml").read_text())
    assert (config["data"]["set"], config["plugins"]) == ("letters", {"data set": "file my_sets.py"})
    capsys.readouterr()
    for command in ("resume", "scores", "report"):
        assert clom(command, "run") == 2, "a run's folder does not make anybody's code run"
        said = capsys.readouterr().err
        assert "needs the data set 'letters' from my_sets.py: repeat the command with --plugin my_sets.py" in said
        assert clom(command, "run", "--plugin", "deep/my_sets.py") == 0
    (elsewhere / "by_name.yaml").write_text("data: {set: letters, sizes: [2, 2]}" + SMALL)
    assert clom("run", "by_name.yaml", *QUICK, "--plugin=deep/my_sets.py") == 0
    capsys.readouterr()
    assert clom("run", "by_name.yaml", *QUICK) == 2
    assert "no data set 'letters'" in capsys.readouterr().err
    assert (
        clom("run", "digits-5t", *QUICK, "--set=data.set=deep/my_sets.py:letters", "--set=data.classes_per_task=2") == 0
    )
    (elsewhere / "run" / "config.yaml").write_text(
        (elsewhere / "run" / "config.yaml").read_text().replace("set: letters", "set: deep/my_sets.py:letters")
    )
    assert clom("resume", "run") == 2, "not even if it names the code"


# --- refusals ---


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("data: {folders: [", "mine.yaml cannot be read as YAML"),
        ("data: {folders: [pictures/nowhere]}", "There is no folder {here}/pictures/nowhere."),
        (
            "data: {folders: [pictures/birds, pictures/more]}",
            "The class 'wren' is in two folders, {here}/pictures/birds",
        ),
        ("data: {folder: pictures/empty, sizes: [2]}", "these in {here}/pictures/empty have fewer: 'none' 0."),
        ("data: {folder: pictures/lone, sizes: [2]}", "these in {here}/pictures/lone have fewer: 'one' 1."),
        ("data: {folder: pictures/birds}", "exactly one of sizes, classes_per_task, groups"),
        ("data: {folder: pictures/birds, sizes: [9]}", "need 9 classes, but birds has 3"),
        ("data: {folder: pictures/birds, size: [3]}", "There is no setting 'data.size'. Did you mean 'sizes'?"),
        ("data: {folder: pictures/birds, npz: x.npz}", "exactly one of set, folder, folders, npz"),
        ("data: {npz: x.npz, sizes: [1]}", "Cannot read {here}/x.npz: No such file or directory."),
        ("data: {set: mnits, sizes: [1]}", "There is no data set 'mnits'. Did you mean 'mnist'?"),
        ("data: {set: 'nowhere.py:f', sizes: [1]}", "There is no Python file {here}/nowhere.py."),
        ("data: {folder: pictures/birds, sizes: [3], pixels: 4}", "Setting 'data.pixels'"),
        ("data: {folder: pictures/birds, sizes: [3]}\nnet: {kind: resnet17}", "There is no network 'resnet17'"),
        ("data: {folder: pictures/birds, sizes: [2, 1]}\nrecipe: {hat: {x: 1}}", "There is no setting 'x'"),
        (
            "data: {folder: pictures/birds, sizes: [2, 1]}",
            "'hat' cannot learn task 2, which has only the class 'wren'",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], data: str, said: str
) -> None:
    write_pictures(elsewhere / "pictures", {"birds": FOUR_TASKS["birds"], "more": ("owl", "wren")})
    write_pictures(elsewhere / "pictures", {"lone": ("several",), "empty": ("several",)}, count=4)
    write_pictures(elsewhere / "pictures", {"lone": ("one",)}, count=1)
    (elsewhere / "pictures" / "empty" / "none").mkdir()
    (elsewhere / "mine.yaml").write_text(data)
    assert clom("run", "mine.yaml", "--method=hat", "--budget=smoke") == 2
    message = capsys.readouterr().err
    assert said.format(here=elsewhere) in message
    assert message.count("\n") == 1
    assert not (elsewhere / "runs").exists()
