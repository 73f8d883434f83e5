"""The picture of a run, drawn from made-up results: both files are real pictures and say what happened."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from clom.evaluation.metrics import ClassIncremental, Evaluation
from clom.experiments.config import resolve
from clom.experiments.run import RunResult, TaskResult
from clom.reporting.figures.run_overview import draw_run


def made_up(folder: Path, n_tasks: int, gates: bool = True, ways: tuple[str, ...] = ("memory", "none")) -> RunResult:
    def after(count: int) -> TaskResult:
        confusion = [[1.0 if row == column else 0.0 for column in range(count)] for row in range(count)]
        way = ClassIncremental(0.7, [0.7] * count, 0.8, 0.9, 0.9, confusion)
        capacity = {"conv1": 0.2 * count / n_tasks, "fc": 0.9 * count / n_tasks} if gates else {}
        return TaskResult(Evaluation(count, 0.95, [0.95] * count, dict.fromkeys(ways, way)), 0.1, 0.2, capacity)

    config = resolve("digits-5t")
    tasks = [after(count) for count in range(1, n_tasks + 1)]
    summary = {"experiment": "digits-5t", "method": "clom", "budget": "cpu", "seed": 7}
    summary |= {"til": 0.954, "cil": 0.7, "forgetting": 0.0}
    names = tuple((f"{2 * task}", f"{2 * task + 1}") for task in range(n_tasks))
    return RunResult(folder, config, names, tasks, summary)


@pytest.mark.parametrize(
    ("n_tasks", "gates", "ways"),
    [
        (5, True, ("memory", "scale", "none")),
        (1, True, ("none",)),
        (12, True, ("memory", "none")),
        (2, False, ("new",)),
    ],
)
def test_figure_files(tmp_path: Path, n_tasks: int, gates: bool, ways: tuple[str, ...]) -> None:
    paths = draw_run(made_up(tmp_path, n_tasks, gates, ways))
    assert [path.name for path in paths] == ["figure.svg", "figure.png"]
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter())) > 100
    with Image.open(tmp_path / "figure.png") as picture:
        picture.load()
        assert picture.width > 1000
        assert picture.height > 400
        colours = picture.convert("RGB").getcolors(2**24)
        assert colours is not None
        assert len(colours) > 100
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_same_result_same_svg(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = draw_run(made_up(tmp_path / "a", 3))[0].read_bytes()
    two = draw_run(made_up(tmp_path / "b", 3))[0].read_bytes()
    assert one == two


def test_no_panel_for_gates_where_there_are_none(tmp_path: Path) -> None:
    def width(gates: bool) -> int:
        with Image.open(draw_run(made_up(tmp_path, 2, gates))[1]) as picture:
            return picture.width

    assert width(True) == pytest.approx(1.5 * width(False), abs=2)
