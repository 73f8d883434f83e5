"""The command line as a person meets it: instant help, one message per mistake, plain lines without a terminal."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clom import __version__, machine
from clom.cli import COMMANDS, main
from clom.cli.display import Display
from clom.data import catalog
from clom.data.catalog import SETS
from clom.experiments import estimate
from clom.experiments.catalogue import BUDGETS, experiment_names
from clom.experiments.run import RunResult, TaskResult
from clom.learning.progress import Progress
from clom.methods.registry import BUILT_IN
from clom.ood.registry import BUILT_IN_SCORES
from clom.reporting.figures import run_overview as figures
from clom.storage.model_file import load_model

TINY = [
    "--budget=smoke",
    "--threads=1",
    "--set=data.train_per_class=8",
    "--set=data.test_per_class=3",
    "--set=data.classes_per_task=null",
    "--set=data.sizes=[2, 2]",
    "--set=net.channels=[4, 4, 6]",
    "--set=net.hidden=8",
    "--set=learning.plan.epochs=1",
    "--set=learning.head.iterations=3",
]


def no_download(*arguments: object) -> Path:
    raise AssertionError("a test must not load anything from the net")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, nobody's data, and a process that keeps its settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOM_DATA", raising=False)
    monkeypatch.setattr(catalog, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(catalog, "_fetch", no_download)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    return tmp_path


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Clom:
    """Calls the program in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        out, err = self.capsys.readouterr()
        return Outcome(code, out, err)


@pytest.fixture
def clom(capsys: pytest.CaptureFixture[str]) -> Clom:
    return Clom(capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu", "digits-5t"], ["rnu", "run"]),
        (["run", "digits-5t", "--budgt", "smoke"], ["--budgt", "--budget"]),
        (["run", "digit-5t"], ["digit-5t", "Did you mean 'digits-5t'"]),
        (["run", "digits-5t", "--method", "clim"], ["clim", "Did you mean 'clom'"]),
        (["run", "digits-5t", "--budget", "smok"], ["smok", "Did you mean 'smoke'"]),
        (["run", "digits-5t", "--set", "learning.plan.epoch=3"], ["learning.plan.epoch", "Did you mean 'epochs'"]),
        (["run", "digits-5t", "--set", "epochs"], ["name=value", "epochs"]),
        (["run", "digits-5t", "--seed", "one"], ["seed", "one"]),
        (["run", "digits-5t", "--config", "absent.yaml"], ["absent.yaml"]),
        (["run"], ["experiment"]),
        (["list", "methds"], ["methds", "methods"]),
        (["import-authors", "absent.model"], ["absent.model"]),
        (["scores", "nowhere"], ["nowhere", "config.yaml", "clom run"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_end_with_a_message_and_exit_code_2(
    clom: Clom, arguments: list[str], expected: list[str], elsewhere: Path
) -> None:
    outcome = clom(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("clom: ")
    assert all(text.lower() in outcome.err.lower() for text in expected)
    assert "Traceback" not in outcome.out + outcome.err
    assert list(elsewhere.iterdir()) == []


def test_help_names_every_command(clom: Clom) -> None:
    outcome = clom("--help")
    assert outcome.code == 0
    assert all(name in outcome.out for name in COMMANDS)
    assert clom("--version").out.strip() == __version__


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(clom: Clom, command: str) -> None:
    outcome = clom(command, "--help")
    assert outcome.code == 0
    assert f"clom {command}" in outcome.out


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"], ["rnu"]], ids=" ".join)
def test_torch_is_not_loaded_where_nothing_is_computed(arguments: list[str]) -> None:
    code = (
        "import sys; from clom.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_list(clom: Clom) -> None:
    outcome = clom("list")
    assert outcome.code == 0
    names = [*experiment_names(), *BUILT_IN, *BUILT_IN_SCORES, *BUDGETS, *SETS.names(), "resnet18", "pooled-conv"]
    assert [name for name in names if name not in outcome.out] == []
    only = clom("list", "methods").out
    assert "clom-no-ood" in only
    assert "digits-5t" not in only
    long = " ".join(clom("list", "methods", "--long").out.split())
    assert "This is RPS-Net (2019), not A-RPS (2020)" in long
    assert "This is RPS-Net (2019)" not in only


# --- runs --------------------------------------------------------------------------------------------------------


def test_a_run_in_plain_lines(clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = clom("run", "digits-5t", *TINY, "--out=here")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert [line.partition(" in ")[0] for line in lines if line.startswith("Learned")] == [
        "Learned task 1 of 2",
        "Learned task 2 of 2",
    ]
    assert "\x1b" not in outcome.out
    assert "\r" not in outcome.out
    summary = json.loads((elsewhere / "here" / "summary.json").read_text())
    assert f"{100 * summary['til']:.1f}" in outcome.out
    assert f"{100 * summary['cil']:.1f}" in outcome.out
    assert "forgetting 0.0" in outcome.out
    assert (elsewhere / "here" / "figure.png").exists()
    assert str(Path("here") / "figure.png") in outcome.out
    # The same command again learns nothing; other settings are refused.
    monkeypatch.setattr(figures, "draw_run", no_picture)
    again = clom("run", "digits-5t", *TINY, "--out=here")
    assert again.code == 0
    assert "Learned" not in again.out
    assert "finished" in again.out
    other = clom("run", "digits-5t", *TINY, "--out=here", "--seed=1")
    assert other.code == 2
    assert "other settings" in other.err
    # Its configuration given back is the same run.
    back = clom("run", "digits-5t", "--budget=smoke", "--config=here/config.yaml", "--out=here")
    assert back.code == 0, back.err


def no_picture(result: RunResult) -> list[Path]:
    """One picture is enough for these tests."""
    return [result.folder / "figure.svg", result.folder / "figure.png"]


def test_runs_with_other_settings_get_other_folders(
    clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "draw_run", no_picture)
    for extra in ("--set=memory_per_class=1", "--set=memory_per_class=2"):
        outcome = clom("run", "digits-5t", *TINY, extra)
        assert outcome.code == 0, outcome.err
    assert len(list((elsewhere / "runs").iterdir())) == 2


def test_out_that_is_a_file(clom: Clom, elsewhere: Path) -> None:
    (elsewhere / "taken").write_text("mine")
    outcome = clom("run", "digits-5t", *TINY, "--out=taken")
    assert outcome.code == 2
    assert "taken" in outcome.err


def test_ctrl_c_says_how_to_go_on(clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "draw_run", no_picture)
    real = Display.task_done

    def interrupted(self: Display, result: TaskResult, n_tasks: int) -> None:
        real(self, result, n_tasks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Display, "task_done", interrupted)
        outcome = clom("run", "digits-5t", *TINY, "--out=here")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err
    assert "here" in outcome.out
    assert "same command" in outcome.out
    again = clom("run", "digits-5t", *TINY, "--out=here")
    assert again.code == 0
    assert "Learned task 1" not in again.out
    assert "Learned task 2" in again.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_within_a_task_loses_nothing(
    clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setattr(figures, "draw_run", no_picture)
    asked: list[bool] = []
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: asked.append(deterministic))
    real, steps = Display.step, list[Progress]()

    def signalled(self: Display, step: Progress) -> None:
        real(self, step)
        steps.append(step)
        if len(steps) == 2:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "step", signalled)
        outcome = clom("run", "digits-5t", *TINY, "--set=learning.plan.batch=4", "--out=here", "--deterministic")
    assert outcome.code == code
    assert "Traceback" not in outcome.err
    assert "clom resume here" in outcome.out
    about = elsewhere / "here" / "environment.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"deterministic": True}))
    monkeypatch.setattr(Display, "step", lambda self, step: steps.append(step))
    again = clom("resume", "here")
    assert again.code == 0
    assert [step.done for step in steps[:3]] == [1, 2, 3], "no step is done twice"
    assert asked == [True, True], "how it was begun is how it goes on"


def test_resuming_what_is_no_run(clom: Clom, elsewhere: Path) -> None:
    outcome = clom("resume", "nowhere")
    assert outcome.code == 2
    assert "nowhere" in outcome.err


# --- data --------------------------------------------------------------------------------------------------------


def idx(shape: tuple[int, ...], fill: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + fill


def mnist(folder: Path) -> Path:
    place = folder / "MNIST" / "raw"
    place.mkdir(parents=True)
    for part in ("train", "t10k"):
        pictures = gzip.compress(idx((20, 28, 28), bytes(20 * 28 * 28)))
        labels = gzip.compress(idx((20,), bytes(range(10)) * 2))
        (place / f"{part}-images-idx3-ubyte.gz").write_bytes(pictures)
        (place / f"{part}-labels-idx1-ubyte.gz").write_bytes(labels)
    return place


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("damage", ["cut", "text", "count"])
def test_a_corrupt_data_file_is_named(
    clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, damage: str, by_environment: bool
) -> None:
    if "mnist-5t" not in experiment_names():
        pytest.skip("mnist-5t is not there yet")
    broken = mnist(elsewhere / "data") / "train-images-idx3-ubyte.gz"
    content = {
        "cut": broken.read_bytes()[:-30],
        "text": b"<html>not found</html>",
        "count": gzip.compress(idx((21, 28, 28), bytes(20 * 28 * 28))),
    }[damage]
    broken.write_bytes(content)
    if by_environment:
        monkeypatch.setenv("CLOM_DATA", str(elsewhere / "data"))
        outcome = clom("run", "mnist-5t", "--budget=smoke")
    else:
        outcome = clom("run", "mnist-5t", "--budget=smoke", "--data", str(elsewhere / "data"))
    assert outcome.code == 2
    assert str(broken) in outcome.err
    assert "Traceback" not in outcome.err


# --- other commands ------------------------------------------------------------------------------------------------


def tiny_checkpoint(path: Path) -> None:
    """The authors' AlexNet-like layout with few units: two tasks of two classes."""
    sizes = {"conv1": (2, 3, 3, 3), "conv2": (3, 2, 3, 3), "conv3": (4, 3, 2, 2), "fc1": (5, 16)}
    state = {f"{name}.weight": torch.randn(*shape) for name, shape in sizes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in sizes.items()}
    state |= {"simclr_layer.fc1.weight": torch.randn(5, 5), "simclr_layer.fc1.bias": torch.randn(5)}
    for task in range(2):
        state |= {f"ec{n}.{task}": torch.ones(1, size) for n, size in zip((1, 2, 3, 4), (2, 3, 4, 5), strict=True)}
        for layer, rows in (("joint_distribution_layer", 8), ("simclr_layer.last", 6)):
            state |= {f"{layer}.{task}.weight": torch.randn(rows, 5), f"{layer}.{task}.bias": torch.randn(rows)}
        state[f"simclr_layer.ec.{task}"] = torch.ones(1, 5)
    torch.save(state, path)


def test_import_authors_with_the_companions_beside_it(clom: Clom, elsewhere: Path) -> None:
    tiny_checkpoint(elsewhere / "last.model")
    outcome = clom("import-authors", "last.model")
    assert outcome.code == 0, outcome.err
    assert "2 tasks, 4 classes" in outcome.out
    assert "calibration: none" in outcome.out
    assert len(load_model(elsewhere / "last.safetensors").tasks) == 2
    torch.save({"w": [1.0, 2.0], "b": [0.0, 0.5]}, elsewhere / "calibration")
    outcome = clom("import-authors", "last.model", "--out", "sub/mine.safetensors")
    assert outcome.code == 0, outcome.err
    affine = load_model(elsewhere / "sub" / "mine.safetensors").calibration
    assert affine.scales.tolist() == [1.0, 2.0]
    torch.save({"w": [1.0], "b": [0.0]}, elsewhere / "other")
    outcome = clom("import-authors", "last.model", "--calibration", "other")
    assert outcome.code == 2
    assert "other" in outcome.err


def test_doctor(clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the timing of networks left out: that is the machine's business, not this test's."""
    monkeypatch.setattr(estimate, "measure", lambda config, shape, device: None)
    monkeypatch.setattr(estimate, "estimate_seconds", lambda config, work, rates: 7200.0)
    mnist(elsewhere / "data")
    outcome = clom("doctor", "--data", str(elsewhere / "data"))
    assert outcome.code == 0, outcome.err
    assert f"{machine.cores()} cores" in outcome.out
    assert "2.0 h" in outcome.out
    lines = outcome.out.splitlines()
    rows = {name: next(line for line in lines if line.split()[:1] == [name]) for name in experiment_names()}
    assert "found" in rows["digits-5t"]
    assert "found" in rows["mnist-5t"]
    assert "missing" in rows["cifar10-5t"]
    monkeypatch.setenv("COLUMNS", "80")
    lines = clom("doctor", "--data", str(elsewhere / "data")).out.splitlines()
    assert [name for name in experiment_names() if not any(line.split()[:1] == [name] for line in lines)] == []
    about = json.loads(clom("doctor", "digits-5t", "--json").out)
    assert about["cores"] == machine.cores()
    (row,) = about["experiments"]
    assert (row["experiment"], row["data"]) == ("digits-5t", True)
    assert row["seconds"] == {"smoke": 7200.0, "cpu": 7200.0, "paper": 7200.0}
    assert row["multiply_adds"]["cpu"] > 1e9
    assert "Did you mean 'digits-5t'" in clom("doctor", "digit-5t").err


def test_doctor_measures_with_the_threads_of_a_run(clom: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: asked.append(threads))
    monkeypatch.setattr(estimate, "measure", lambda config, shape, device: estimate.Rates(1.0, 1.0, 1.0))
    about = machine.describe() | {"cores": 2, "threads": 2}
    monkeypatch.setattr(machine, "describe", lambda: about)
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 1.0, 1.0))
    assert "The machine is busy (load 7.5 on 2 cores)" in clom("doctor", "digits-5t", "--threads", "1").out
    assert asked == [1]
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 1.0, 1.0))
    assert "busy" not in clom("doctor", "digits-5t").out


def test_help_shows_what_stands_in_angle_brackets(clom: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        module = importlib.import_module(f"clom.cli.{command.replace('-', '_')}")
        text = getattr(module, f"{command.replace('-', '_')}_command").__doc__ or ""
        shown = "".join(line.strip("│ ") for line in clom(command, "--help").out.splitlines())
        wanted = [word.strip("`.,;") for word in text.split() if "<" in word]
        assert [word for word in wanted if word not in shown] == []
    assert "runs/<experiment>-<method>-<budget>-s<seed>" in "".join(
        line.strip("│ ") for line in clom("run", "--help").out.splitlines()
    )


def test_no_color(clom: Clom, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bold type is not a colour; everything else is left out."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m|\x1b\[38;")
    assert colour.search(clom("run", "--help").out)
    monkeypatch.setenv("NO_COLOR", "1")
    for arguments in (["run", "--help"], ["list"], ["list", "methods", "--long"]):
        assert not colour.search(clom(*arguments).out)


def test_shell_completion(clom: Clom, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    outcome = clom("--install-completion", "--shell", "bash", "--output", "completion.sh")
    assert outcome.code == 0, outcome.err
    script = (elsewhere / "completion.sh").read_text()
    assert all(name in script for name in COMMANDS)
    assert all(option in script for option in ("--checkpoint-every", "--track", "tensorboard"))
