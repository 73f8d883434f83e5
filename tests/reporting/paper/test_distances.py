"""Distances in standard deviations, computed by hand."""

from __future__ import annotations

import math

import pytest

from clom.reporting.paper.distances import Distance, one_decimal, too_few, verdict_of
from clom.reporting.paper.numbers import Number


def test_the_deviation_is_pooled_by_degrees_of_freedom() -> None:
    # Three seeds with deviation 1 and five with deviation 2: variance (2 * 1 + 4 * 4) / 6 = 3.
    distance = Distance(Number(96.0, 1.0, 3), Number(90.0, 2.0, 5))
    assert distance.deviations == pytest.approx(6 / math.sqrt(3))
    assert Distance(distance.second, distance.first).deviations == pytest.approx(-6 / math.sqrt(3))
    assert str(distance) == "+6.0 (3.5)"


def test_fewer_than_three_seeds_on_either_side_have_no_distance() -> None:
    enough, two, one = Number(90.0, 1.0, 3), Number(80.0, 1.0, 2), Number(80.0, None, 1)
    for distance in (Distance(enough, two), Distance(two, enough), Distance(enough, one), Distance(one, enough)):
        assert distance.deviations is None
    assert str(Distance(enough, one)) == "+10.0 (one seed)"
    assert str(Distance(two, enough)) == "-10.0 (2 seeds)"
    assert too_few([Distance(enough, two), Distance(enough, one)]) == "one seed, no deviation known"
    assert too_few([Distance(enough, two)]) == "2 seeds, too few for a deviation"


def test_seeds_that_all_agree() -> None:
    same, other = Number(99.0, 0.0, 3), Number(98.0, 0.0, 3)
    assert Distance(same, same).deviations == 0
    points = same.mean - other.mean
    assert Distance(same, other).deviations == pytest.approx(points / 0.1), "not infinitely far apart"
    assert Distance(other, same).deviations == pytest.approx(-points / 0.1)
    assert one_decimal(-0.01) == "0.0"


def test_verdicts() -> None:
    assert verdict_of([1.0, 5.0]) == "holds"
    assert verdict_of([0.9, 5.0]) == "undecided"
    assert verdict_of([-0.9, 5.0]) == "undecided"
    assert verdict_of([-1.0, 5.0]) == "fails"
    assert verdict_of([5.0, None]) == "unknown"
    assert verdict_of([None, -2.0]) == "fails", "one clear exception is enough"
    assert verdict_of([]) == "unknown"
