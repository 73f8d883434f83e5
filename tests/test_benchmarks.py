"""The benchmarks run, and their report says what was measured. Speed itself is no business of a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import four_pixels
from benchmarks.crash import Run, crash
from benchmarks.inference import predict
from benchmarks.measure import figure, interleaved, ratios, seconds
from benchmarks.models import Masked, random_pixels, subject, untrained
from benchmarks.report import markdown, number
from benchmarks.storage import live_bytes
from clom.methods.clom import Clom


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


def test_a_figure_is_a_median_with_quartiles() -> None:
    measured = figure("a", "b", [5.0, 1.0, 3.0, 2.0, 4.0], "s")
    assert (measured.value, measured.low, measured.high, measured.n) == (3.0, 2.0, 4.0, 5)
    assert (measured.verdict, measured.limit, measured.of_limit) == ("", None, None)
    alone = figure("a", "b", [7.0], "s")
    assert (alone.value, alone.low, alone.high) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("value", "at_most", "at_least", "verdict"),
    [
        (1.1, 1.1, None, "PASS"),
        (1.2, 1.1, None, "over"),
        (3.0, None, 3.0, "PASS"),
        (2.9, None, 3.0, "under"),
        (0.0, 0.0, None, "PASS"),
        (1.0, 0.0, None, "over"),
    ],
)
def test_verdicts(value: float, at_most: float | None, at_least: float | None, verdict: str) -> None:
    measured = figure("a", "b", [value], "x", at_most=at_most, at_least=at_least)
    assert measured.verdict == verdict
    limit = at_most if at_most is not None else at_least
    assert measured.of_limit == (value / limit if limit else None)


def test_variants_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2}
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_the_masked_model_is_the_same_model() -> None:
    """Otherwise the comparison would compare two things."""
    what = subject("ResNet-18, width 64", quick=True)
    cut, masked = untrained(what, 2), untrained(what, 2, Masked)
    assert all(torch.equal(a, b) for a, b in zip(cut.parameters(), masked.parameters(), strict=True))
    pixels = random_pixels(what, 4)
    for ours, theirs in zip(cut.blocks(pixels), masked.blocks(pixels), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert torch.equal(predict(cut, pixels, 2), predict(masked, pixels, 2))
    assert cut._networks
    assert not masked._networks


def test_one_thread_is_timed_by_the_processor(restored_threads: None) -> None:
    """Otherwise other programs on the machine would count."""
    torch.set_num_threads(1)
    assert seconds(lambda: time.sleep(0.2)) < 0.1
    torch.set_num_threads(2)
    assert seconds(lambda: time.sleep(0.2)) >= 0.2


def test_living_tensors_are_counted_once() -> None:
    before = live_bytes()
    block = torch.zeros(1000)
    view = block[:10]
    assert live_bytes() - before == 4000
    del block, view
    assert live_bytes() == before


def test_half_of_the_gates_are_open() -> None:
    model: Clom = untrained(subject("MNIST net", quick=False), 1)
    gates = torch.cat(list(model.gates(0).values()))
    assert 0.45 < float(gates.mean()) < 0.55


def test_numbers_are_told_with_three_digits() -> None:
    assert [number(value) for value in (0, 0.01234, 1.0, 12.345, 1234.5)] == ["0", "0.0123", "1", "12.3", "1234"]


@pytest.mark.usefixtures("restored_threads")
def test_an_unknown_benchmark_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "speed", "--out", str(tmp_path)])
    assert "unknown: speed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.filterwarnings("ignore:Task")  # networks as small as these may close a layer
def test_everything_is_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--quick", "--threads", "1", "--out", str(tmp_path / "new")])
    content = json.loads((tmp_path / "new" / "benchmarks.json").read_text(encoding="utf-8"))
    assert content["quick"] is True
    assert {"date", "commit", "minutes", "machine"} <= set(content)
    figures = content["figures"]
    assert all(entry["unit"] and len(entry["quartiles"]) == 2 for entry in figures)
    assert all(entry["median"] >= 0 for entry in figures if entry["unit"] != "%")  # what costs nothing may cost less
    limited = [entry for entry in figures if entry["limit"] is not None]
    # Two steps, three of answering with each network, two against onnxruntime for each, two predictors, two
    # calibrations, four of memory, two of checkpoints, one of device waits; the quick precision has no limit.
    assert len(limited) == 2 + 6 + 4 + 2 + 2 + 4 + 2 + 1
    differences = [entry["median"] for entry in figures if entry["name"] == "largest difference of a score"]
    assert len(differences) == 4
    assert max(differences) < 1e-3, "both sides answer the same question"
    for part in ("augmentation", "network", "loss", "update"):
        assert sum(entry["name"] == f"part: {part}" for entry in figures) == 3
    same = [entry for entry in limited if "different predictions" in entry["name"]]
    assert [entry["verdict"] for entry in same] == ["PASS", "PASS"]
    text = (tmp_path / "new" / "benchmarks.md").read_text(encoding="utf-8")
    assert "These figures mean nothing" in text
    table = text.partition("## Limits")[2].partition("## All figures")[0]
    assert table.count("\n| ") == len(limited) + 2
    assert "limits kept" in capsys.readouterr().out


def test_a_full_report_does_not_say_that_it_was_quick() -> None:
    where = {"processor": "p", "threads": 2, "memory_gb": 1, "gpu": None, "python": "3", "packages": {"torch": "2"}}
    about = {"date": "2000-01-01", "commit": "abc", "minutes": 1.0, "quick": False, "machine": where}
    text = markdown(about, [figure("a group", "a name", [1.0, 2.0, 4.0], "x", at_least=3.0)])
    assert "mean nothing" not in text
    assert "| a group: a name | 2 x [1.5 - 3], 3 | >= 3 x | 0.67 | under |" in text
    assert "### A group" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clom", "derpp"])
def test_killed_runs_end_as_unbroken_ones(method: str, tmp_path: Path) -> None:
    equal, within = crash(Run.of(method), kills=4, seed=1, place=tmp_path)
    assert equal == 4
    assert within >= 1


def test_killed_lessons_end_as_unbroken_ones() -> None:
    """In a new process: one whose gradients were computed by several threads cannot be forked."""
    command = [sys.executable, "-m", "benchmarks.crash", "learn", "--kills", "4", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "4 of 4 ended with the same bytes" in done.stdout, done.stderr


def test_dense_products_and_plain_convolutions_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    four_pixels.main(["--rounds", "2"])
    assert re.fullmatch(r"a step with dense products takes \d\.\d\d \[.*\] of a plain one\n", capsys.readouterr().out)
