"""What the runs behind a table show of the rules of a fair comparison: counted passes and recorded searches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clom.experiments.ledger import Row
from clom.methods.registry import method_label


def is_counted(row: Row) -> bool:
    """Whether the training passes were counted."""
    return row.figures.get("passes") is not None


def is_searched(row: Row) -> bool:
    """Whether the recipe was found by a recorded search."""
    return bool(row.search)


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


def how_many(count: int, total: int) -> str:
    """For example `none of the 20 runs has`, to be continued."""
    if total == 1:
        return "the run has" if count else "the run does not have"
    if count == total:
        return f"all {total} runs have"
    return f"{count or 'none'} of the {total} runs {'have' if count > 1 else 'has'}"
