"""What the runs behind a table show of the rules of a fair comparison: counted passes and recorded searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clom.experiments.ledger import Row
from clom.files import read_json
from clom.methods.registry import method_label

NO_TRIALS: Mapping[str, int] = {}
"""Of searches, by their names, where no records of them are known."""


def is_counted(row: Row) -> bool:
    """Whether the training passes were counted."""
    return row.figures.get("passes") is not None


def is_searched(row: Row) -> bool:
    """Whether the recipe was found by a recorded search."""
    return bool(row.search)


def follows_protocol(row: Row) -> bool:
    """Whether its work was counted and its recipe searched for, as for all others."""
    return is_counted(row) and is_searched(row)


def split_by_protocol(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of one budget that count, and those from before the protocol that do not.

    An experiment with a single run under the protocol has only such runs: others had other work and other tuning, and
    would not be comparable.
    """
    rows = list(rows)
    protected = {row.experiment for row in rows if follows_protocol(row)}
    earlier = [row for row in rows if row.experiment in protected and not follows_protocol(row)]
    return [row for row in rows if row.experiment not in protected or follows_protocol(row)], earlier


def earlier_runs(rows: Sequence[Row]) -> str:
    """A sentence about the runs from before the protocol that are left out; empty if there are none."""
    if not rows:
        return ""
    counts = Counter(method_label(row.method) for row in rows)
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    verb = "is" if len(rows) == 1 else "are"
    systems = ", ".join(label if count == 1 else f"{label} ({count})" for label, count in counts.items())
    return f"Before the protocol: {runs} without counted passes or a recorded search {verb} left out: {systems}."


def protocol_lines(rows: Iterable[Row]) -> tuple[str, ...]:
    """Two lines for under a table: each rule, and how many of its runs are known to follow it."""
    runs = list({row.key: row for row in rows}.values())
    return (f"Equal work{_work(runs)}", f"Equal search{_search(runs)}") if runs else ()


def protocol_counts(rows: Sequence[Row]) -> str:
    """For example `20 runs, 0 with counted passes, 0 with a recipe from a recorded search`."""
    counted, searched = sum(map(is_counted, rows)), sum(map(is_searched, rows))
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    return f"{runs}, {counted} with counted passes, {searched} with a recipe from a recorded search"


def _work(runs: Sequence[Row]) -> str:
    counted = [row for row in runs if is_counted(row)]
    rule = " (training passes within the experiment's allowance):"
    text = f"{rule} {how_many(len(counted), len(runs))} counted passes"
    text += _shares([row for row in counted if row.figures.get("allowance")])
    before = "; runs without them were made before passes were counted"
    return f"{text}." if len(counted) == len(runs) else f"{text}{before}."


def _shares(allowed: Sequence[Row]) -> str:
    """How much of the allowances was used, and the allowances."""
    if not allowed:
        return ""
    shares = [100 * row.figures["passes"] / row.figures["allowance"] for row in allowed]
    sizes = sorted({(row.experiment, row.figures["allowance"]) for row in allowed})
    limits = ", ".join(f"{experiment} {allowance / 1000:,.0f} thousand" for experiment, allowance in sizes)
    over = sum(share > 100 for share in shares)
    text = f", {min(shares):.0f} to {max(shares):.0f}% of what is allowed ({limits})"
    return text + (f", {over} of them more than allowed" if over else "")


def _search(runs: Sequence[Row]) -> str:
    by_hand = [row for row in runs if not is_searched(row)]
    rule = " (six trials per system on held-out training images):"
    text = f"{rule} {how_many(len(runs) - len(by_hand), len(runs))} a recipe from a recorded search"
    names = list(dict.fromkeys(method_label(row.method) for row in by_hand))
    if not by_hand:
        return f"{text}."
    whose = "all" if len(by_hand) == len(runs) else ", ".join(names)
    return f"{text}; recipe by hand, before the protocol: {whose}."


def read_trials(folder: Path) -> dict[str, int]:
    """The number of trials of every search recorded in a folder, by the name of the search."""
    records = [read_json(path) for path in sorted(folder.glob("*.json"))]
    return {record["search"]: len(record["trials"]) for record in records}


def how_many(count: int, total: int) -> str:
    """For example `none of the 20 runs has`, to be continued."""
    if total == 1:
        return "the run has" if count else "the run does not have"
    if count == total:
        return f"all {total} runs have"
    return f"{count or 'none'} of the {total} runs {'have' if count > 1 else 'has'}"
