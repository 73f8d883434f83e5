"""The figure of a search shows every trial, whatever became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom.reporting.figures.search import draw_search


def trial(number: int, state: str, *cil: float) -> dict[str, Any]:
    return {"number": number, "state": state, "start": "published" if number == 1 else "by hand", "cil": list(cil)}


@pytest.mark.parametrize("importance", [{}, {"optimiser.lr": 0.7, "length": 0.3}])
def test_every_trial_is_drawn(tmp_path: Path, importance: dict[str, float]) -> None:
    trials = [
        trial(1, "finished", 0.9, 0.8, 0.71),
        trial(2, "pruned", 0.6),
        trial(3, "diverged"),
        trial(4, "too long"),
        trial(5, "finished", 0.9, 0.8, 0.73),
    ]
    record = {
        "method": "icarl",
        "experiment": "cifar10-5t",
        "trial": {"tasks": 3},
        "trials": trials,
        "importance": importance,
    }
    svg, png = draw_search(record, tmp_path)
    assert png.stat().st_size > 10_000
    text = svg.read_text()
    for words in ("71.0", "73.0", "pruned", "diverged", "too long", "Search for iCaRL on CIFAR10-5T"):
        assert f"<!-- {words}" in text, words
    assert ("<!-- optimiser.lr" in text) == bool(importance)
    assert ("<!-- too few finished trials" in text) != bool(importance)
