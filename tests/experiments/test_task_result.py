"""Lines of `metrics.jsonl` are read as written, and damage is detected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.evaluation.metrics import ClassIncremental, Evaluation
from clom.experiments.task_result import TaskResult, growth, read_results, used_shares


def result(n_tasks: int) -> TaskResult:
    row = [0.5] * n_tasks
    way = ClassIncremental(0.5, row, 0.6, 0.7, 0.7, [row] * n_tasks)
    return TaskResult(Evaluation(n_tasks, 0.75, row, {"none": way}), 0.5, 0.9, {"conv1": 0.25})


def test_a_line_is_read_as_written() -> None:
    assert TaskResult.from_line(result(2).to_line()) == result(2)


def test_a_changed_line_is_refused() -> None:
    with pytest.raises(ValueError, match="checksum does not match"):
        TaskResult.from_line(result(2).to_line().replace("0.75", "0.85"))


def test_older_lines_without_checksums() -> None:
    data = result(2).to_json()
    assert TaskResult.from_line(json.dumps(data)) == result(2)
    del data["cpu_minutes"]
    assert TaskResult.from_line(json.dumps(data)).cpu_minutes == result(2).minutes


def test_lines_of_earlier_versions_have_no_units() -> None:
    data = result(2).to_json()
    assert "units" not in data, "lines of earlier versions are written as they were"
    assert TaskResult.from_json(data) == result(2)


def test_capacity_of_a_network_that_grew() -> None:
    """Four of eight units, then five of ten: of the ten, four and five."""
    sizes = [{"conv1": 8, "fc": 20}, {"conv1": 10, "fc": 20}]
    tasks = [replace(result(1), capacity={"conv1": 0.5, "fc": 0.25}, units=units) for units in sizes]
    assert used_shares(tasks) == [{"conv1": 0.4, "fc": 0.25}, {"conv1": 0.5, "fc": 0.25}]
    assert growth(tasks) == {"conv1": (8, 10)}
    older = [result(1), result(2)]
    assert used_shares(older) == [{"conv1": 0.25}] * 2
    assert growth(older) == {}
    assert TaskResult.from_line(tasks[1].to_line()) == tasks[1]


def test_as_many_lines_as_the_model_has_tasks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(result(n).to_line() for n in (1, 2, 3)))
    assert read_results(path, 2) == [result(1), result(2)], "the model of the third task was not saved"
    with pytest.raises(UserError, match="has 3 tasks, but the model has 4"):
        read_results(path, 4)


@pytest.mark.parametrize(("lines", "problem"), [([2], "does not have 1 tasks"), ([1, 1], "does not have 2 tasks")])
def test_every_line_has_its_number_of_tasks(lines: list[int], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(result(n).to_line() for n in lines))
    with pytest.raises(UserError, match=problem):
        read_results(path, len(lines))
