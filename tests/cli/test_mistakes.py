"""Typical mistakes: one helpful sentence each, before torch or a model is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clom.cli import main
from clom.cli.checks import any_exists, is_class_folder, is_model, is_run
from clom.errors import UserError

MISTAKES = {
    "rnu digits-5t": 'Unknown command "rnu". Did you mean "run"?',
    "run": "Name an experiment, for example: clom run digits-5t --budget smoke",
    "run digit-5t": "There is no experiment 'digit-5t'. Did you mean 'digits-5t'? Known: ",
    "run digits-5t --method clim": "There is no method 'clim'. Did you mean 'clom'? Known: ",
    "run digits-5t --budget smok": "There is no budget 'smok'. Did you mean 'smoke'? Known: cpu, paper, smoke.",
    "run digits-5t --budgt smoke": "Unknown option: --budgt. Did you mean --budget?",
    "run digits-5t --set epochs": "--set takes name=value, for example --set learning.plan.epochs=10; got 'epochs'.",
    "run mnist-5t --data nowhere": "The folder of data sets nowhere does not exist. Correct --data, or leave it out.",
    "run digits-5t --out taken.txt": "taken.txt is a file, but a run needs a folder. Choose another path with --out.",
    "run digits-5t --config absent.yaml": "There is no file absent.yaml.",
    "run digits-5t --device gpu": "There is no device 'gpu'. Did you mean 'cpu'? Known: auto, cpu, cuda, cuda:0, mps.",
    "run digits-5t --precision fp16": "There is no precision 'fp16'. Did you mean 'float16'? Known: ",
    "run digits-5t --track tensorbord": "tensorbord",
    "run mine.yaml": "There is no experiment file mine.yaml.",
    "resume runs": "runs is not the folder of a run: it has no config.yaml. It contains runs, for example runs/a.",
    "watch rusn/a": "rusn/a is not the folder of a run: it has no config.yaml. 'clom run' creates one.",
    "report runs/b": "runs/b is not the folder of a run: it has no config.yaml. 'clom run' creates one.",
    "report runs/a runs/b": "runs/b is not the folder of a run: it has no config.yaml. 'clom run' creates one.",
    "compare runs/a": 'Command "compare" parameter OTHER requires an argument.',
    "predict flower.model rose.jpg": "There is no file flower.model. Did you mean flowers.model?",
    "predict flowers.model": "No photos given. Name them after the model: clom predict MODEL PHOTO ...",
    "predict flowers.model rsoe.jpg": "There is no file or folder rsoe.jpg. Did you mean rose.jpg?",
    "learn flowers.model insekts": "There is no folder insekts. Did you mean insects?",
    "learn flowers.model rose.jpg": "rose.jpg is a file: photos are learned from a folder with one subfolder per",
    "inspect absent.model": "There is no file absent.model. 'clom learn' creates a model.",
    "verify flowers.model --against old": "There is no file old. 'clom learn' creates a model.",
    "grid absent.yaml": "There is no file absent.yaml.",
    "list methds": "methods",
    "doctor --data nowhere": "The folder of data sets nowhere does not exist. Correct --data, or leave it out.",
}

WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "matplotlib"):
            raise AssertionError(f"{name} is loaded")
sys.meta_path.insert(0, Blocked())
from clom.cli import main
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit as end:
        print(f"exit code {end.code}", file=sys.stderr)
    except AssertionError as problem:
        print(problem, file=sys.stderr)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, photos and a run."""
    for folder in ("insects", "runs/a", "runs/b"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("flowers.model", "rose.jpg", "taken.txt", "runs/a/config.yaml"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOM_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize(("line", "sentence"), MISTAKES.items(), ids=MISTAKES)
def test_one_helpful_sentence(line: str, sentence: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(line.split())
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert out == ""
    assert err.startswith("clom: ")
    assert sentence in err
    assert "Traceback" not in err
    assert sorted(place.rglob("*")) == before, "nothing was written"


@pytest.mark.usefixtures("place")
def test_mistakes_are_found_before_torch_is_loaded() -> None:
    """All of them in one process in which torch cannot be loaded."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input="\n".join(MISTAKES),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [line for line in done.stderr.splitlines() if line.endswith("is loaded")] == []
    assert done.stderr.count("exit code 2") == len(MISTAKES)


def test_what_is_right_passes(place: Path) -> None:
    is_model(None, place / "flowers.model")
    is_run(None, place / "runs" / "a")
    is_class_folder(None, place / "insects")
    any_exists(["absent.jpg", str(place / "rose.jpg")])
    any_exists(["holiday/*.jpg"])
    with pytest.raises(UserError):
        is_run(None, (place / "runs" / "a", place / "runs" / "b"))
