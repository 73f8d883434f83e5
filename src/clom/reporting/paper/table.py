"""The content of a table, before it is rendered.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from clom.experiments.ledger import Row
from clom.reporting.paper.numbers import EXPERIMENTS, Number, Results
from clom.reporting.paper.protocol import earlier_runs, protocol_lines

SEEDS_FOR_BOLD = 3
"""Of fewer seeds, the difference between two systems may well be chance."""


@dataclass(frozen=True)
class Column:
    group: str
    """The heading shared by several columns, or an empty string."""
    name: str
    best: Literal["highest", "lowest", "none"] = "highest"
    digits: int = 1


@dataclass(frozen=True)
class Entry:
    """Our number and the paper's; None if unknown."""

    ours: Number | None = None
    paper: Number | None = None


@dataclass(frozen=True)
class Line:
    label: str
    entries: tuple[Entry, ...]
    competes: bool = True
    """Whether it can be the best of a column; references cannot."""
    group: str = ""
    """The heading shared with the lines beside it, or an empty string."""


@dataclass(frozen=True)
class Table:
    title: str
    heading: str
    """Of the first column."""
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def opens_group(self, line: int) -> bool:
        """Whether the heading of the line's group goes above it."""
        group = self.lines[line].group
        return bool(group) and (line == 0 or self.lines[line - 1].group != group)

    def is_best(self, line: int, column: int) -> bool:
        """Whether our number is the best of those of ours in the column that come from enough seeds, as displayed; a
        single number is never best."""
        best = self.columns[column].best
        numbers = {
            number: round(entry.mean, self.columns[column].digits)
            for number, other in enumerate(self.lines)
            if other.competes
            and (entry := other.entries[column].ours) is not None
            and (entry.seeds or 0) >= SEEDS_FOR_BOLD
        }
        if best == "none" or len(numbers) < 2 or line not in numbers:
            return False
        return numbers[line] == (max if best == "highest" else min)(numbers.values())


def notes_of(
    results: Results, experiments: Iterable[str], rows: Iterable[Row], derived: bool = True
) -> tuple[str, ...]:
    """Notes for tables of these experiments with the numbers of these runs; the paper's training is mentioned only
    beside its own experiments."""
    experiments = set(experiments)
    notes = [*protocol_notes(results, experiments, rows)]
    if derived and any(not row.overrides for row in results.derived):
        notes.append("CLOM(-c): computed from the runs of CLOM, whose networks are the same.")
    if results.budget != "paper" and not EXPERIMENTS.keys().isdisjoint(experiments):
        notes.append(
            "The paper trains larger networks on all images for 700 epochs, so its numbers are not directly comparable."
        )
    return tuple(notes)


def protocol_notes(results: Results, experiments: Iterable[str], rows: Iterable[Row]) -> tuple[str, ...]:
    """What these runs show of the protocol, and which runs of the experiments are left out because of it."""
    wanted = set(experiments)
    left_out = earlier_runs([row for row in results.earlier if row.experiment in wanted])
    return (*protocol_lines(row for row in rows if row in results.rows), *([left_out] if left_out else []))
