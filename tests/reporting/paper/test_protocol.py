"""The lines under a table say what its runs show of the protocol, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from clom.experiments.ledger import Row, add, read, read_all
from clom.reporting.paper.numbers import Number, Results
from clom.reporting.paper.protocol import (
    earlier_runs,
    protocol_counts,
    protocol_lines,
    read_trials,
    split_by_protocol,
)
from clom.reporting.paper.tables import make_table
from reporting.paper.test_tables import made_up

WORK = "Equal work (training passes within the experiment's allowance): "
SEARCH = "Equal search (six trials per system on held-out training images): "


def searched(row: Row) -> Row:
    """The same run under the protocol."""
    return replace(row, search="a-search", figures=row.figures | {"passes": 1.0, "allowance": 2.0})


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


# --- which rows count ------------------------------------------------------------------------------------------------


def test_without_runs_under_the_protocol_all_count() -> None:
    rows = [made_up(), made_up("hat", passes=1.0), replace(made_up("bic"), search="half-way")]
    assert split_by_protocol(rows) == (rows, []), "counted and searched for, both, and none is"


def test_old_runs_are_not_mixed_with_those_under_the_protocol() -> None:
    old = [made_up(), made_up("hat", cil=0.8), made_up("hat", 1, cil=0.7), made_up(overrides={"memory_per_class": 5})]
    elsewhere = made_up("owm", experiment="digits-5t")
    rows = [*old, searched(made_up("bic")), elsewhere, made_up("hat", budget="smoke")]
    results = Results(rows, "cpu")
    assert [row.method for row in results.rows] == ["bic", "owm"], "another experiment is not affected"
    assert results.earlier == old
    table = make_table("main", rows)
    numbers = {line.label: line.entries[1].ours for line in table.lines}
    assert (numbers["BiC"], numbers["HAT"], numbers["CLOM(-c)"]) == (Number(90.0, None, 1), None, None)
    assert (
        "Before the protocol: 4 runs without counted passes or a recorded search are left out: CLOM (2), HAT (2)."
    ) in table.notes
    assert Results(rows, "smoke").earlier == []


def test_a_newer_run_supersedes_an_old_one_which_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    add(path, [made_up(cil=0.5)])
    add(path, [searched(made_up(cil=0.6))])
    assert [(row.figures["cil"], bool(row.superseded)) for row in read_all(path)] == [(0.5, True), (0.6, False)]
    assert Results(read(path), "cpu").earlier == []


def test_one_run_left_out_and_none() -> None:
    assert earlier_runs([]) == ""
    assert earlier_runs([made_up("hat")]).startswith("Before the protocol: 1 run without")
    assert earlier_runs([made_up("hat")]).endswith("is left out: HAT.")


def test_trials_of_searches(tmp_path: Path) -> None:
    assert read_trials(tmp_path / "none") == {}
    (tmp_path / "a.json").write_text(json.dumps({"search": "mnist-5t-hat", "trials": [{}, {}]}), encoding="utf-8")
    (tmp_path / "README.md").write_text("not a record", encoding="utf-8")
    assert read_trials(tmp_path) == {"mnist-5t-hat": 2}
