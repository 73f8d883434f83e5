"""What a reader under test is, and which inputs it gets: the same for the same seed, one by one or all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

Make = Callable[[Path, Random], object]
"""Writes one bad input into an empty folder."""

_CLI_EVERY = 8


@dataclass(frozen=True)
class Reader:
    """Something that reads what people give it, through the function or the command that people use."""

    name: str
    special: Callable[[], Mapping[str, Make]]
    """Inputs made by hand; a function, since some are derived from a valid file that has to be made first."""
    chance: Make
    """An input made by chance."""
    read: Callable[[Path], object]
    """Reads what was made in a folder."""
    command: Callable[[Path], list[str]] | None = None
    """The words after `clom` that read the same; for a part of the inputs they are used instead."""


@dataclass(frozen=True)
class Case:
    """One input: hand-made ones have the first numbers."""

    reader: str
    number: int

    def through_command(self, reader: Reader) -> bool:
        return reader.command is not None and self.number % _CLI_EVERY == _CLI_EVERY - 1

    def make(self, reader: Reader, by_hand: Mapping[str, Make], folder: Path, seed: int) -> str:
        """Write the input and say what it is; `by_hand` is what `reader.special()` gave."""
        name = list(by_hand)[self.number] if self.number < len(by_hand) else "by chance"
        make = by_hand.get(name, reader.chance)
        make(folder, Random(f"{seed}/{self.reader}/{self.number}"))
        return name


def plan(by_hand: Mapping[str, int], count: int, seed: int) -> list[Case]:
    """So many cases, evenly over the readers, of which so many inputs were made by hand each: all of these first, or a
    part of them where there is no room."""
    cases = []
    for place, (name, special) in enumerate(by_hand.items()):
        share = count * (place + 1) // len(by_hand) - count * place // len(by_hand)
        chosen = list(range(share))
        if share < special:
            chosen = sorted(Random(f"{seed}/{name}").sample(range(special), share - share // 3))
            chosen += range(special, special + share // 3)
        cases += [Case(name, number) for number in chosen]
    return cases
