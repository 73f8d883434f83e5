"""Fair timing on a noisy machine.

Variants alternate in one process, so that other load affects all of them; ratios are taken round by round. A figure is
a median with its quartiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Figure:
    """One line of the report: a median, its quartiles over `n` measurements, and its limit."""

    group: str
    name: str
    value: float
    unit: str
    low: float
    high: float
    n: int
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def limit(self) -> float | None:
        return self.at_most if self.at_most is not None else self.at_least

    @property
    def verdict(self) -> str:
        """PASS, or on which side of the limit the figure lies; empty without a limit."""
        if self.at_most is not None:
            return "PASS" if self.value <= self.at_most else "over"
        if self.at_least is not None:
            return "PASS" if self.value >= self.at_least else "under"
        return ""

    @property
    def of_limit(self) -> float | None:
        """The figure as a multiple of its limit."""
        return self.value / self.limit if self.limit else None

    def to_json(self) -> dict[str, Any]:
        kind = None if self.limit is None else "at most" if self.at_most is not None else "at least"
        return {
            "group": self.group,
            "name": self.name,
            "median": self.value,
            "unit": self.unit,
            "quartiles": [self.low, self.high],
            "n": self.n,
            "limit": self.limit,
            "limit_kind": kind,
            "of_limit": self.of_limit,
            "verdict": self.verdict,
            "note": self.note,
        }


def figure(
    group: str,
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Figure:
    """The median and the quartiles of measured values."""
    low, high = (
        (values[0], values[0]) if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")[::2]
    )
    return Figure(group, name, statistics.median(values), unit, low, high, len(values), at_most, at_least, note)


def now() -> float:
    """Seconds. With one thread the processor's time, which other programs on the machine hardly affect."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds(action: Callable[[], object]) -> float:
    started = now()
    action()
    return now() - started


def interleaved(
    variants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1, pause: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each variant in each round; warm-up rounds, which fill caches and the allocator, do not count.

    `pause` is the number of seconds between them: threads of one that wait actively would slow down the next.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warmup + rounds):
        for name, action in variants.items():
            time.sleep(pause)
            taken = seconds(action)
            if number >= warmup:
                times[name].append(taken)
    return times


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]
