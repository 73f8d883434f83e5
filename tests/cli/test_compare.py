"""`clom compare`: results, tasks and settings of finished runs, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from clom.cli import main
from clom.cli.compare import differing_settings, names_of, read_summary


def make_run(folder: Path, cil: float, method: str = "hat", **settings: Any) -> Path:
    folder.mkdir(parents=True)
    config = {"experiment": "digits-5t", "method": method, "seed": 0, "net": {"kind": "conv"}, "settings": settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = {"cil": cil, "til": 1.0, "forgetting": 0.0, "parameters": 120_000, "memory_bytes": 9000, "passes": None}
    (folder / "summary.json").write_text(json.dumps(summary))
    last = {"til_by_task": [1.0, 1.0], "by_calibration": {"memory": {"cil_by_task": [cil, 0.5]}, "none": {}}}
    (folder / "metrics.jsonl").write_text(json.dumps({"til_by_task": []}) + "\n" + json.dumps(last) + "\n")
    return folder


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["compare", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out + err


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("COLUMNS", "80")
    first = make_run(tmp_path / "digits-5t-hat-cpu-s0", 0.658, plan={"epochs": 10})
    second = make_run(tmp_path / "digits-5t-clom-cpu-s0", 0.946, "clom", plan={"epochs": 30}, rotations=4)
    return str(first), str(second)


def test_two_runs(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text = compared(capsys, *two)
    assert code == 0
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "CIL, % 65.8 94.6 +28.8" in lines
    assert "TIL, % 100.0 100.0 0.0" in lines
    assert "parameters, million 0.12 0.12 0.00" in lines
    assert "1 65.8 / 100.0 94.6 / 100.0" in lines
    assert "plan.epochs 10 30" in lines
    assert "rotations - 4" in lines
    assert "method hat clom" in lines
    assert not any(line.startswith(("seed", "experiment", "training passes")) for line in lines)
    assert max(map(len, text.splitlines())) <= 80


def test_backwards_the_difference_has_the_other_sign(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = [" ".join(line.split()) for line in compared(capsys, *reversed(two))[1].splitlines()]
    assert "CIL, % 94.6 65.8 -28.8" in lines


def test_json_and_three_runs(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(compared(capsys, *two, "--json")[1])
    assert [run["cil"] for run in content["runs"]] == [0.658, 0.946]
    assert content["settings"]["plan.epochs"] == [10, 30]
    code, text = compared(capsys, *two, two[0])
    assert code == 0
    assert "difference" not in text


def test_equal_settings_and_equal_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / place / "run", 0.5, epochs=1) for place in "ab"]
    assert "All settings are equal." in compared(capsys, *map(str, runs))[1]
    summaries = [read_summary(run) for run in runs]
    assert differing_settings(summaries) == {}
    assert names_of(summaries) == [str(run) for run in runs]


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("summary.json", None, "is not finished"),
        ("summary.json", "[1]", "damaged"),
        ("summary.json", '{"cil": "x"}', "damaged"),
        ("metrics.jsonl", "", "damaged"),
        ("config.yaml", "seed: 0", "damaged"),
    ],
)
def test_damaged_and_unfinished_runs(
    file: str, content: str | None, expected: str, two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(two[1]) / file
    path.unlink() if content is None else path.write_text(content)
    code, text = compared(capsys, *two)
    assert code == 2
    assert expected in text
    assert two[1] in text
    assert "Traceback" not in text
