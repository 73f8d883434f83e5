"""A package of somebody else's (`plugin_package/`), installed and used through every command, and then missed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from processes import environment

PACKAGE = Path(__file__).parent / "plugin_package"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
COMMANDS = """
import json, shlex, sys
from clom.cli import main
for line in sys.argv[1:]:
    try:
        main(shlex.split(line))
    except SystemExit as end:
        print(json.dumps({"ended": line, "code": end.code}), flush=True)
"""
"""Several commands in one process: starting Python and torch for each would take most of the time."""
USE = """
import sys, torch, clom
model = clom.load_model(sys.argv[1])
pixels = clom.load_stream("gratings-2t").tests[0].pixels
clom.save_model(sys.argv[2], model)
assert all(map(torch.equal, clom.load_model(sys.argv[2]).blocks(pixels), model.blocks(pixels)))
print(type(model).__module__, type(model.backbone.net).__module__, [task.class_names for task in model.tasks])
"""


@dataclass(frozen=True)
class Place:
    """A working directory, and where the package was installed to."""

    folder: Path
    installed: Path

    def python(
        self, code: str, *arguments: str, with_package: bool = True, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        settings = environment(COLUMNS="200", **(more or {}))
        if with_package:
            settings["PYTHONPATH"] = os.pathsep.join([str(self.installed), settings["PYTHONPATH"]])
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=self.folder, env=settings, capture_output=True, text=True
        )

    def clom(
        self, *lines: str, codes: Sequence[int] | None = None, with_package: bool = True, **more: str
    ) -> dict[str, str]:
        """What each command printed; they must end with `codes`, or all with 0."""
        done = self.python(COMMANDS, *lines, with_package=with_package, more=more)
        texts, text = {}, ""
        ended = []
        for line in done.stdout.splitlines():
            if line.startswith('{"ended"'):
                ended.append(json.loads(line))
                texts[ended[-1]["ended"]], text = text, ""
            else:
                text += line + "\n"
        assert [one["code"] for one in ended] == list(codes or [0] * len(lines)), done.stdout + done.stderr
        return texts | {"errors": done.stderr}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The package as a wheel, unpacked where Python finds it: all that installing it would do."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PACKAGE, folder / "source")
    (folder / "wheels").mkdir()
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / "wheels")], cwd=source, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    (folder / "work").mkdir()
    return Place(folder / "work", folder / "installed")


@pytest.fixture(scope="module")
def used(place: Place) -> dict[str, str]:
    """What the commands print, one after another: an interrupted run is resumed, a grid is run and written about."""
    run = "run gratings-2t --method anchored --budget smoke --out resumed --checkpoint-every 0"
    place.clom(run, codes=[130], TINY_PLUGIN_STEPS="5")
    assert not (place.folder / "resumed" / "summary.json").exists()
    (place.folder / "grid.yaml").write_text(
        "experiments: [gratings-2t]\nmethods: [anchored, hat]\nbudget: smoke\nseeds: [0]\n"
    )
    return place.clom(
        "list",
        "resume resumed",
        "grid grid.yaml --out runs",
        "record runs/gratings-2t-anchored-smoke-s0 runs/gratings-2t-hat-smoke-s0 --ledger ledger.jsonl",
        "table --ledger ledger.jsonl --experiment gratings-2t --budget smoke",
        "report runs/gratings-2t-anchored-smoke-s0",
        "scores runs/gratings-2t-anchored-smoke-s0",
    )


def test_everything_it_brings_is_listed_with_its_origin(used: dict[str, str]) -> None:
    for name in ("anchored", "two-layers", "gratings", "margin", "gratings-2t"):
        (line,) = (line for line in used["list"].splitlines() if line.startswith(f"{name} "))
        assert "package clom-tiny-plugin 0.3.0" in line


def test_a_resumed_run_is_the_run_that_was_never_interrupted(place: Place, used: dict[str, str]) -> None:
    folders = place.folder / "resumed", place.folder / "runs" / "gratings-2t-anchored-smoke-s0"
    resumed, whole = (json.loads((folder / "summary.json").read_text()) for folder in folders)
    measured = ("til", "cil", "task_detection", "auc_maxlogit", "auc_msp", "forgetting")
    assert {name: resumed[name] for name in measured} == {name: whole[name] for name in measured}
    assert (
        folders[0].joinpath("scores.safetensors").read_bytes() == folders[1].joinpath("scores.safetensors").read_bytes()
    )
    config = yaml.safe_load((folders[0] / "config.yaml").read_text())
    assert config["net"] == {"kind": "two-layers", "channels": 6, "hidden": 12}
    assert set(config["plugins"].values()) == {"package clom-tiny-plugin"}


def test_tables_reports_and_scores_know_what_it_brings(place: Place, used: dict[str, str]) -> None:
    table, report, scores = (text for line, text in used.items() if line.split()[0] in ("table", "report", "scores"))
    rows = [line.split()[1] for line in table.splitlines() if line.startswith("│ ")]
    assert rows == ["With", "HAT", "Additions", "Anchored"]  # each group has a heading
    page = place.folder / "runs" / "gratings-2t-anchored-smoke-s0" / "report.html"
    assert str(page.relative_to(place.folder)) in report
    text = page.read_text(encoding="utf-8")
    assert all(word in text for word in ("Anchored", "Gratings in two tasks of three and two directions", "steep"))
    assert "│ margin " in scores
    assert "ODIN (needs logits" in scores, "a shared network offers none"


def test_its_models_can_be_saved_and_loaded(place: Place, used: dict[str, str]) -> None:
    done = place.python(USE, "resumed/model.safetensors", "copy.safetensors")
    assert done.returncode == 0, done.stderr
    classes = "[('level', 'rising', 'steep'), ('upright', 'falling')]"
    assert done.stdout.strip() == f"tiny_plugin.method tiny_plugin.network {classes}"


def test_without_it_everything_says_what_to_install(place: Place, used: dict[str, str]) -> None:
    needed = {
        "inspect resumed/model.safetensors": "needs the method 'anchored' from the package clom-tiny-plugin 0.3.0",
        "inspect runs/gratings-2t-hat-smoke-s0/model.safetensors": "needs the network 'two-layers' from the package",
        "resume resumed": "needs the method 'anchored' from the package clom-tiny-plugin, which is not installed",
        "report runs/gratings-2t-hat-smoke-s0": "needs the network 'two-layers' from the package clom-tiny-plugin",
        "run gratings-2t": "no experiment 'gratings-2t'",
    }
    table = "table --ledger ledger.jsonl --experiment gratings-2t --budget smoke"
    said = place.clom(*needed, table, codes=[2] * len(needed) + [0], with_package=False)
    for text, told in zip(said["errors"].splitlines(), needed.values(), strict=True):
        assert told in text
    assert "│ anchored " in said[table], "what was measured can be shown without it"
