"""How far apart two means are, in standard deviations, and what that says of a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from clom.reporting.paper.numbers import Number
from clom.reporting.paper.table import SEEDS_FOR_BOLD as ENOUGH_SEEDS

CLEAR = 1.0
"""Standard deviations by which a claim has to hold."""
SMALLEST = 0.1
"""Points: a smaller deviation, such as that of seeds which happen to agree, would be exact beyond what is printed."""
EXPLANATION = (
    "The distance of two systems is the difference of their means divided by their pooled standard deviation, "
    "sqrt(((n1 - 1) s1² + (n2 - 1) s2²) / (n1 + n2 - 2)) for n1 and n2 seeds, and at least 0.1 points."
)
Verdict = Literal["holds", "undecided", "fails", "unknown"]


@dataclass(frozen=True)
class Distance:
    """The first number minus the second."""

    first: Number
    second: Number

    @property
    def points(self) -> float:
        return self.first.mean - self.second.mean

    @property
    def deviations(self) -> float | None:
        """In pooled standard deviations; None if one of the two has too few seeds for one."""
        one, other = self.first, self.second
        if self.fewest_seeds < ENOUGH_SEEDS or one.std is None or other.std is None:
            return None
        freedom = [(one.seeds or 0) - 1, (other.seeds or 0) - 1]
        pooled = math.sqrt((freedom[0] * one.std**2 + freedom[1] * other.std**2) / sum(freedom))
        return self.points / max(pooled, SMALLEST)

    @property
    def fewest_seeds(self) -> int:
        return min(self.first.seeds or 0, self.second.seeds or 0)

    def __str__(self) -> str:
        """For example `+2.1 (3.5)`: points, and standard deviations in parentheses."""
        known, seeds = self.deviations, "one seed" if self.fewest_seeds < 2 else f"{self.fewest_seeds} seeds"
        return f"{signless_zero(f'{self.points:+.1f}')} ({seeds if known is None else one_decimal(known)})"


def one_decimal(value: float) -> str:
    return signless_zero(f"{value:.1f}")


def signless_zero(text: str) -> str:
    return "0.0" if text in ("-0.0", "+0.0") else text


def too_few(distances: Iterable[Distance]) -> str:
    """Why a claim is not known if the fewest seeds of these distances are too few."""
    fewest = min((distance.fewest_seeds for distance in distances), default=0)
    return "one seed, no deviation known" if fewest < 2 else f"{fewest} seeds, too few for a deviation"


def verdict_of(deviations: Iterable[float | None]) -> Verdict:
    """Of a claim that everything is above zero: it fails by one clear exception, and is unknown if a distance is."""
    found = list(deviations)
    known = [distance for distance in found if distance is not None]
    if any(distance <= -CLEAR for distance in known):
        return "fails"
    if not found or len(known) < len(found):
        return "unknown"
    return "holds" if min(known) >= CLEAR else "undecided"
