"""The ledger is read completely, or refused with its name and the line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clom.errors import UserError
from clom.experiments.ledger import Row, add, read, read_all
from clom.reporting.paper.rendering import RENDERERS
from clom.reporting.paper.tables import TABLES, make_table

GOOD: dict[str, Any] = asdict(
    Row(
        "digits-5t",
        "clom",
        "cpu",
        0,
        {"net.hidden": 8},
        {"til": 0.9, "cil": 0.8, "cil_by_calibration": {"none": 0.7}, "forgetting": None},
        {"til": [1.0, 0.9], "cil": [1.0, 0.8], "til_by_task": [[1.0], [1.0, 0.8]]},
        "abc",
        {"torch": "2"},
        "a machine",
    )
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_a_row_is_read_as_written(tmp_path: Path) -> None:
    add(tmp_path / "ledger", [Row(**GOOD)])
    assert read(tmp_path / "ledger") == [Row(**GOOD)]


def test_an_older_result_of_the_same_run_stays_marked(tmp_path: Path) -> None:
    path, old = tmp_path / "ledger", Row(**GOOD)
    new = replace(old, figures=old.figures | {"cil": 0.85, "passes": 1000.0, "allowance": 2000.0}, commit="def")
    other = replace(old, seed=1)
    add(path, [old, other])
    add(path, [old])
    assert read_all(path) == [old, other], "the same result again changes nothing"
    add(path, [new])
    assert read(path) == [new, other]
    first, second, third = read_all(path)
    assert (second, third) == (new, other)
    assert replace(first, superseded="") == old
    assert datetime.fromisoformat(first.superseded).tzinfo is not None
    newest = replace(new, commit="ghi")
    add(path, [newest])
    assert [row.commit for row in read_all(path)] == ["abc", "def", "ghi", "abc"]
    assert read(path) == [newest, other]
    assert read_all(path)[0] == first, "it keeps its mark"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([*GOOD, "surprise"]), value=anything)
def test_accepted_rows_can_be_displayed(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"seed": 1, name: value}) + "\n")
    rows, why = [], ""
    try:
        rows = read(path)
    except UserError as problem:
        why = str(problem)
    assert rows or "ledger.jsonl is not a ledger: line 2" in why
    for table in TABLES if rows else []:
        for render in RENDERERS.values():
            render(make_table(table, rows)).encode()


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("figures", {"til": "0.9"}),
        ("figures", {"til": {"none": 0.9}}),
        ("figures", {"cil_by_calibration": 0.7}),
        ("figures", {"cil_by_calibration": {"none": "x"}}),
        ("figures", {"parameters": 1e300}),
        ("by_task", {"til": [[0.9]]}),
        ("by_task", {"til_by_task": [0.9]}),
        ("versions", {"torch": 2}),
    ],
)
def test_figures_of_the_wrong_type(tmp_path: Path, group: str, change: dict[str, Any]) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps(GOOD | {group: GOOD[group] | change}))
    with pytest.raises(UserError, match=r"ledger\.jsonl is not a ledger: line 1 is not a run"):
        read(path)
