"""A method of one's own through all commands: in a file, without it, from an installed package."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import plugin_files
from clom import machine
from clom.cli import main, take_plugins
from clom.data.catalog import SETS
from clom.errors import UserError
from clom.experiments.grid import Cell, Outcome
from clom.experiments.run import RunResult
from clom.methods.registry import METHODS
from clom.nets.networks.registry import NETS
from clom.reporting.figures import run_overview as figures
from plugin_files import METHOD, NETWORK, install, write

RUN = ["run", "digits-5t", "--out=run", "--budget=smoke"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, and a process that keeps its settings and its registries."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    monkeypatch.setattr(figures, "draw_run", no_picture)
    with plugin_files.clean(METHODS, NETS):
        yield tmp_path


def no_picture(made: RunResult) -> list[Path]:
    return [made.folder / "figure.svg", made.folder / "figure.png"]


def clom(*arguments: str) -> int:
    """One command, in a process that knows no plug-in from before."""
    with plugin_files.clean(METHODS, NETS), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code if isinstance(end.value.code, int) else int(end.value.code is not None)


def test_a_file_through_all_commands(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(elsewhere, "sub/my_file.py", METHOD)
    assert clom(*RUN, "--method", "sub/my_file.py:Mine") == 0
    config = yaml.safe_load((elsewhere / "run/config.yaml").read_text())
    assert (config["method"], config["settings"], config["plugins"]) == ("mine", {}, {"method": "file my_file.py"})
    assert json.loads((elsewhere / "run/summary.json").read_text())["til"] > 0.5
    capsys.readouterr()

    for command in (["resume", "run"], ["report", "run"], ["scores", "run"], ["run", "digits-5t", "--method=mine"]):
        assert clom(*command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        wanted = "no method 'mine'" if command[0] == "run" else "repeat the command with --plugin my_file.py"
        assert wanted in said
    assert clom("resume", "run", "--plugin", "sub/my_file.py") == 0
    assert clom("--plugin=sub/my_file.py", "report", "run") == 0
    assert clom(*RUN, "--plugin=sub/my_file.py", "--method=mine") == 0, "the same run again"
    assert "finished" in capsys.readouterr().out

    assert clom("record", "run", "--ledger=ledger.jsonl") == 0
    assert clom("table", "main", "--ledger=ledger.jsonl", "--budget=smoke", "--experiment=digits-5t") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert lines[-1].split()[1] == "mine", "a row of its own, beneath the paper's"


def test_a_grid_tells_its_runs_what_to_load(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(elsewhere, "my_file.py", METHOD)
    write(elsewhere, "grid.yaml", "experiments: [digits-5t]\nmethods: [mine, finetune]\nbudget: smoke\n")
    done = []

    def run(cell: Cell, *options: Any) -> Outcome:
        done.append(cell.command(*options[:6]))
        return "finished"

    monkeypatch.setattr(Cell, "run", run)
    assert clom("grid", "grid.yaml", "--plugin", "my_file.py") == 0
    words = done[0]
    assert words[words.index("--method") + 1] == "mine"
    assert words[words.index("--plugin") + 1] == str(path)
    rest, plugins = take_plugins(words[3:])
    assert plugins == [str(path)]
    assert clom(*rest, "--plugin", *plugins) == 0
    assert clom("grid", "grid.yaml") == 2


def test_a_network_of_a_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(elsewhere, "my_net.py", NETWORK)
    tiny = ["--set=plan.epochs=1", "--set=net.width=4"]
    assert clom(*RUN, *tiny, "--method=finetune", "--set=net.kind=my_net.py:MyNet") == 0
    config = yaml.safe_load((elsewhere / "run/config.yaml").read_text())
    assert config["net"] == {"kind": "mynet", "width": 4}
    assert config["plugins"] == {"network": "file my_net.py"}
    capsys.readouterr()
    assert clom("resume", "run") == 2
    assert "The run in run needs the network 'mynet' from my_net.py: repeat" in capsys.readouterr().err
    assert clom("resume", "run", "--plugin=my_net.py") == 0
    write(elsewhere, "settings.yaml", "net: {kind: 'my_net.py:MyNet'}\n")
    assert clom(*RUN[:2], "--config=settings.yaml") == 2
    assert "only if the command itself names it: pass --plugin my_net.py" in capsys.readouterr().err


class Cluster:
    """Takes jobs as a cluster does, as bytes, and does not do them."""

    jobs: ClassVar[list[bytes]] = []

    def __init__(self, **options: object) -> None: ...

    def update_parameters(self, **options: object) -> None: ...

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def submit(self, *job: object) -> None:
        self.jobs.append(pickle.dumps(job))


def test_a_cluster_job_loads_what_its_run_needs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(elsewhere, "my_net.py", NETWORK)
    monkeypatch.setattr("submitit.AutoExecutor", Cluster)
    write(
        elsewhere,
        "grid.yaml",
        "experiments: [digits-5t]\nmethods: [finetune]\nbudget: smoke\n"
        "variants: {mine: {net.kind: mynet, plan.epochs: 1}}\n",
    )
    assert clom("grid", "grid.yaml", "--plugin=my_net.py", "--cluster=slurm") == 0
    ((_, command, folder),) = map(pickle.loads, Cluster.jobs)
    rest, plugins = take_plugins(command[3:])
    assert (list(plugins), folder) == ([str(path)], Path("runs/digits-5t-finetune-smoke-s0-mine"))
    assert '--set net.kind="mynet"' in " ".join(rest)


def test_a_file_that_is_read_loads_no_code(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(elsewhere, "evil.py", "import pathlib\npathlib.Path('loaded').touch()\n")
    write(elsewhere, "grid.yaml", "experiments: [digits-5t]\nmethods: ['evil.py:Mine']\nbudget: smoke\n")
    assert clom("grid", "grid.yaml") == 2
    assert "only if the command itself names it: pass --plugin evil.py" in capsys.readouterr().err
    write(elsewhere, "my_file.py", METHOD)
    assert clom(*RUN, "--method=my_file.py:Mine") == 0
    text = (elsewhere / "run/config.yaml").read_text()
    for change in ("method: evil.py:Mine", "method: evil:Mine", "method: evil"):
        (elsewhere / "run/config.yaml").write_text(text.replace("method: mine", change))
        assert clom("resume", "run", "--plugin=my_file.py") == 2
    assert not (elsewhere / "loaded").exists()


def test_an_installed_package(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"clom.methods": {"nearest-image": "nearest_images:Mine"}}
    install(tmp_path / "site", "nearest_images", "1.2", METHOD, points)
    with monkeypatch.context() as installed:
        installed.syspath_prepend(tmp_path / "site")
        assert clom(*RUN, "--method=nearest-image") == 0
        assert clom("resume", "run") == 0
        capsys.readouterr()
        assert clom("list", "methods") == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if "nearest-image" in line)
        assert "The nearest mean image." in line
        assert "package nearest_images 1.2" in line
    assert yaml.safe_load((elsewhere / "run/config.yaml").read_text())["plugins"] == {
        "method": "package nearest_images"
    }
    for command in ("resume", "report"):
        assert clom(command, "run") == 2
        assert "from the package nearest_images, which is not installed here" in capsys.readouterr().err


def test_the_list_says_where_things_come_from(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clom("list", "methods") == 0
    assert "from" not in capsys.readouterr().out.splitlines()[0]
    code = METHOD.replace(
        "class Mine", '@clom.register_method("mine", title="MINE: my own", keeps="mean images")\nclass Mine'
    )
    write(elsewhere, "my_file.py", code)
    install(tmp_path / "site", "ruins", "0.1", "1 / 0", {"clom.methods": {"ruin": "ruins:Ruin"}})
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert clom("list", "methods", "--plugin=my_file.py", "--long") == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split()[-1] == "from"
    assert [
        word
        for word in ("MINE: my own", "mean images", "file my_file.py", "built in", "ZeroDivisionError")
        if word not in shown
    ] == []


@pytest.mark.parametrize("what", ["networks", "datasets", "experiments"])
def test_other_lists_do_so_too(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Test modules that were imported before may have registered networks.
    built_in = {name: entry for name, entry in NETS._entries.items() if entry.origin == "built in"}
    monkeypatch.setattr(NETS, "_entries", built_in)
    assert clom("list", what) == 0
    assert "from" not in capsys.readouterr().out.splitlines()[0]
    points = {"clom.networks": {"my-net": "bundle:MyNet"}, "clom.datasets": {"birds": "bundle:birds"}}
    code = f"{NETWORK}\ndef birds():\n    'Many birds.'\n"
    install(tmp_path / "site", "bundle", "0.1", code, points | {"clom.experiments": {"own": "bundle"}})
    write(tmp_path, "site/bundle/experiments/birds-4t.yaml", "title: Birds in four tasks\ndata: {set: birds}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with plugin_files.clean(SETS):
        assert clom("list", what) == 0
    text = {"networks": "no description", "datasets": "Many birds.", "experiments": "Birds in four tasks"}[what]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[-1] == "from"
    assert [line for line in shown if text in line and "package bundle 0.1" in line]
    assert [line for line in shown if "built in" in line]


@pytest.mark.parametrize(
    ("arguments", "rest", "plugins"),
    [
        (["--plugin", "a.py", "run", "x"], ["run", "x"], ["a.py"]),
        (["run", "--plugin=a.py", "x", "--plugin", "b.c"], ["run", "x"], ["a.py", "b.c"]),
        (["predict", "--", "--plugin", "a.py"], ["predict", "--", "--plugin", "a.py"], []),
        (["run", "--plugins", "a"], ["run", "--plugins", "a"], []),
    ],
)
def test_plugins_stand_anywhere(arguments: list[str], rest: list[str], plugins: list[str]) -> None:
    assert take_plugins(arguments) == (rest, plugins)


@pytest.mark.parametrize("arguments", [["run", "--plugin"], ["--plugin="], ["--plugin", "--method=x"]])
def test_a_plugin_needs_a_place(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="--plugin takes a Python file or a module"):
        take_plugins(arguments)


def test_a_plugin_that_does_not_load_ends_the_command(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(elsewhere, "my_file.py", "x = (\n")
    for words in (["list", "--plugin=my_file.py"], ["list", "--plugin=absent.py"], ["list", "--plugin=no.such"]):
        assert clom(*words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("clom: ")
        assert "Traceback" not in err
