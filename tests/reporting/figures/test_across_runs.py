"""Figures from made-up ledgers and runs: real pictures, the same every time, that name what they show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from clom.cli import main
from clom.errors import UserError
from clom.evaluation.metrics import ClassIncremental, Evaluation
from clom.experiments.config import resolve
from clom.experiments.ledger import add
from clom.experiments.task_result import TaskResult
from clom.reporting.figures import across_runs as plots
from clom.reporting.figures import run_details as run_plots
from clom.reporting.paper.numbers import Results, method_order
from reporting.paper.test_tables import made_up


def check(paths: list[Path]) -> None:
    assert {path.suffix for path in paths} == {".svg", ".png"}
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            with Image.open(path) as picture:
                picture.load()
                assert min(picture.size) > 300
                colours = picture.convert("RGB").getcolors(2**24)
                assert colours is not None
                assert len(colours) > 20


def result(n_tasks: int) -> TaskResult:
    rates = [0.9] * n_tasks
    way = ClassIncremental(0.9, rates, 0.9, 0.9, 0.9, [rates] * n_tasks)
    return TaskResult(
        Evaluation(n_tasks, 0.9, rates, {"none": way}), 1.0, 1.0, {"conv1": 0.3 * n_tasks, "fc": 0.1 * n_tasks}
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a finished run of three tasks leaves, as far as figures read it."""
    folder = tmp_path / "digits-5t-clom-smoke-s0"
    folder.mkdir()
    config = resolve("digits-5t", budget="smoke").model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(result(task).to_line() for task in (1, 2, 3)), encoding="utf-8")
    random = torch.Generator().manual_seed(0)
    blocks = {
        f"{model}.{test}": torch.randn(20, 2, generator=random) + 3 * (model == test)
        for model in range(3)
        for test in range(3)
    }
    save_file(blocks, folder / "scores.safetensors")
    return folder


@pytest.mark.parametrize("name", run_plots.OF_RUNS)
def test_pictures_of_a_run(name: str, run: Path, tmp_path: Path) -> None:
    paths = run_plots.OF_RUNS[name](run, tmp_path / "out")
    assert [path.name for path in paths] == [f"{name}-{run.name}.svg", f"{name}-{run.name}.png"]
    check(paths)


@pytest.mark.parametrize("name", ["forgetting", "til-curves", "cil-curves"])
def test_pictures_of_a_ledger(name: str, tmp_path: Path) -> None:
    rows = [made_up(), made_up("hat"), made_up("owm", memory_bytes=0, forgetting=0.1), made_up("joint")]
    rows += [made_up("clom+"), made_up("a-plug-in")]
    rows.append(made_up("hat", experiment="digits-5t"))
    add(tmp_path / "ledger.jsonl", rows)
    words = ["figure", name, "--ledger", str(tmp_path / "ledger.jsonl"), "--out"]
    for out in ("one", "two"):
        with pytest.raises(SystemExit) as end:
            main([*words, str(tmp_path / out)])
        assert not end.value.code
    check(sorted((tmp_path / "one").iterdir()))
    assert (tmp_path / "one" / f"{name}-cpu.svg").read_bytes() == (tmp_path / "two" / f"{name}-cpu.svg").read_bytes()


def test_lines_differ_without_colour_and_dashes_mean_no_samples() -> None:
    looks = [plots._look(method, keeps_samples=True) for method in (*method_order(), *plots.ADDITIONS, "a-plug-in")]
    assert len({look["marker"] for look in looks}) == len(looks)
    assert {look["linestyle"] for look in looks} == {"-"}
    assert plots._look("owm", keeps_samples=False)["linestyle"] != "-"
    rows = [made_up(), made_up("owm", memory_bytes=0)]
    curves = plots.curves_of(Results(rows, "cpu"), "mnist-5t", "cil")
    assert {name: curve.keeps_samples for name, curve in curves.items()} == {"clom": True, "owm": False}
    assert curves["clom"].means == [100.0, 90.0]


def test_additions_have_curves_and_bars() -> None:
    rows = [made_up(), made_up("clom+"), made_up("a-plug-in")]
    assert list(plots.curves_of(Results(rows, "cpu"), "mnist-5t", "cil")) == ["clom", "a-plug-in", "clom+"]
    assert [plots._kind(name) for name in ("clom", "clom+", "a-plug-in", "clom-odin", "joint")] == [
        "CLOM",
        "additions",
        "additions",
        "TIL systems",
        "references",
    ]


def test_til_curves_leave_out_clom_without_calibration() -> None:
    assert list(plots.curves_of(Results([made_up()], "cpu"), "mnist-5t", "til")) == ["clom"]


def test_augmentations_of_a_photo_and_of_grey_digits(tmp_path: Path) -> None:
    check(run_plots.draw_augmentations(tmp_path / "photo"))
    check(run_plots.draw_augmentations(tmp_path / "digits", "digits-5t"))  # no view of a grey image has colours


def test_mistakes(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no runs"):
        plots.draw_from_ledger("forgetting", [made_up()], tmp_path, "paper")
    (run / "metrics.jsonl").write_text(replace(result(1), capacity={}).to_line(), encoding="utf-8")
    with pytest.raises(UserError, match="no gates"):
        run_plots.draw_capacity(run, tmp_path)
    for words in (["capacity"], ["forgetting", str(run)], ["scores", str(tmp_path)], ["histogram"]):
        with pytest.raises(SystemExit) as end:
            main(["figure", *words, "--out", str(tmp_path / "none")])
        assert end.value.code == 2
        assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
