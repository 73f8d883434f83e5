"""What a table of the paper is made of, before it is rendered.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clom.reporting.paper.numbers import Number, Results


@dataclass(frozen=True)
class Column:
    group: str
    """What stands above several columns; empty where there is nothing."""
    name: str
    best: Literal["highest", "lowest", "none"] = "highest"
    digits: int = 1


@dataclass(frozen=True)
class Entry:
    """Ours and the paper's; None where there is none."""

    ours: Number | None = None
    paper: Number | None = None


@dataclass(frozen=True)
class Line:
    label: str
    entries: tuple[Entry, ...]
    competes: bool = True
    """Whether it can be the best of a column; bounds cannot."""


@dataclass(frozen=True)
class Table:
    title: str
    heading: str
    """Of the first column."""
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def is_best(self, line: int, column: int) -> bool:
        """Whether ours is the best of ours in the column, as far as the shown digits tell; one alone is no best."""
        how = self.columns[column].best
        numbers = {
            number: round(entry.mean, self.columns[column].digits)
            for number, other in enumerate(self.lines)
            if other.competes and (entry := other.entries[column].ours) is not None
        }
        if how == "none" or len(numbers) < 2 or line not in numbers:
            return False
        return numbers[line] == (max if how == "highest" else min)(numbers.values())


def notes_of(results: Results, derived: bool = True) -> tuple[str, ...]:
    """What a reader of any table must know."""
    notes = []
    if derived and any(not row.overrides for row in results.derived):
        notes.append("CLOM(-c): read off the runs of CLOM, whose networks are the same.")
    if results.budget != "paper":
        notes.append("The paper trains for 700 epochs on all images with larger networks: other work, other numbers.")
    return tuple(notes)
