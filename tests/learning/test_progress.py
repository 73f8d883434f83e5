"""Share of a task's time that has passed, by phase."""

from __future__ import annotations

import pytest

from clom.learning.progress import Progress


@pytest.mark.parametrize(
    ("phase", "share"), [("views", 0.425), ("adapters", 0.92), ("features", 0.46), ("head", 0.96), ("anything", 0.5)]
)
def test_half_of_a_phase(phase: str, share: float) -> None:
    assert Progress(0, phase, 1, 2).share == pytest.approx(share)


@pytest.mark.parametrize("phases", [("features", "head"), ("views", "adapters")])
def test_phases_follow_each_other_without_a_gap(phases: tuple[str, str]) -> None:
    first, second = phases
    assert Progress(0, first, 0, 7).share == 0
    assert Progress(0, first, 7, 7).share == pytest.approx(Progress(0, second, 0, 3).share)
    assert Progress(0, second, 3, 3).share >= 0.99
