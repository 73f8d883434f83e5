"""The lines under a table say what its runs show of the protocol, and no more."""

from __future__ import annotations

from dataclasses import replace

from clom.reporting.paper.protocol import protocol_counts, protocol_lines
from reporting.paper.test_tables import made_up

WORK = "Equal work (training passes within the experiment's allowance): "
SEARCH = "Equal search (six trials per system on held-out training images): "


def test_runs_from_before_the_protocol() -> None:
    assert protocol_lines([made_up(), made_up("hat")]) == (
        f"{WORK}none of the 2 runs has counted passes; runs without them were made before passes were counted.",
        f"{SEARCH}none of the 2 runs has a recipe from a recorded search; recipe by hand, before the protocol: all.",
    )
    assert protocol_counts([made_up()]) == "1 run, 0 with counted passes, 0 with a recipe from a recorded search"


def test_runs_under_the_protocol() -> None:
    rows = [made_up(seed=seed, passes=passes, allowance=4_000_000) for seed, passes in enumerate((1e6, 3e6))]
    rows = [replace(row, search="mnist-5t-clom") for row in rows]
    work, search = protocol_lines(rows)
    assert work == f"{WORK}all 2 runs have counted passes, 25 to 75% of what is allowed (mnist-5t 4,000 thousand)."
    assert search == f"{SEARCH}all 2 runs have a recipe from a recorded search."


def test_some_of_the_runs_and_more_than_allowed() -> None:
    rows = [made_up(passes=5e6, allowance=4e6), made_up("hat"), replace(made_up("bic"), search="mnist-5t-bic")]
    work, search = protocol_lines([*rows, rows[0]])
    assert "1 of the 3 runs has counted passes, 125 to 125% of what is allowed" in work
    assert "1 of them more than allowed; runs without them" in work
    assert search.endswith("recipe by hand, before the protocol: CLOM, HAT.")


def test_no_allowance_and_no_runs() -> None:
    assert protocol_lines([made_up(passes=100)])[0] == f"{WORK}the run has counted passes."
    assert protocol_lines([]) == ()
