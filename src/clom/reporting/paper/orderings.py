"""Compares the order of systems with the paper's, for every pair with numbers here and there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from clom.reporting.paper.numbers import Number, Results, method_order, paper_number

STAND_INS = {"digits-5t": "mnist-5t"}
"""Experiments that the paper does not have -> the paper's experiment that they are compared with."""
Measure = Literal["til", "cil"]


@dataclass(frozen=True)
class Pair:
    """Two systems, the better one in the paper first."""

    methods: tuple[str, str]
    paper: tuple[Number, Number]
    ours: tuple[Number, Number]

    @property
    def verdict(self) -> Literal["holds", "reversed", "tie"]:
        first, second = (round(number.mean, 1) for number in self.ours)
        if first == second:
            return "tie"
        return "holds" if first > second else "reversed"

    @property
    def clear(self) -> bool:
        """Whether both differences, the paper's and ours, are known to be larger than the standard deviations."""
        return _apart(*self.paper) and _apart(*self.ours)


def _apart(one: Number, other: Number) -> bool:
    """Whether the difference exceeds its standard deviation, which is unknown for a single seed."""
    if one.std is None or other.std is None:
        return False
    return abs(one.mean - other.mean) > math.hypot(one.std, other.std)


@dataclass(frozen=True)
class Orderings:
    """All pairs of one experiment and measure, without the paper's ties."""

    experiment: str
    against: str
    """The paper's experiment."""
    measure: Measure
    pairs: tuple[Pair, ...]
    ties_in_paper: int

    def of(self, verdict: str, clear: bool | None = None) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict == verdict and clear in (None, pair.clear)]


def orderings(results: Results, experiment: str, measure: Measure) -> Orderings:
    """The orderings of runs of the unchanged recipe."""
    against = STAND_INS.get(experiment, experiment)
    both: list[tuple[str, Number, Number]] = []
    for method in method_order():
        theirs = paper_number("final_accuracy", against, method, measure)
        ours = results.number(experiment, method, measure)
        if theirs is not None and ours is not None:
            both.append((method, theirs, ours))
    pairs = [_pair(one, other) for one, other in combinations(both, 2) if one[1].mean != other[1].mean]
    ties = len(both) * (len(both) - 1) // 2 - len(pairs)
    return Orderings(experiment, against, measure, tuple(pairs), ties)


def _pair(*systems: tuple[str, Number, Number]) -> Pair:
    first, second = sorted(systems, key=lambda system: -system[1].mean)
    return Pair((first[0], second[0]), (first[1], second[1]), (first[2], second[2]))
