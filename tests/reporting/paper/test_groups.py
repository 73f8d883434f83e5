"""Groups of systems: who stores samples is what the ledger's runs stored."""

from __future__ import annotations

from pathlib import Path

from clom.experiments.ledger import read
from clom.methods.registry import BUILT_IN, PAPER_METHODS
from clom.reporting.paper.groups import GROUPS, by_group, group_of

LEDGER = Path(__file__).parents[3] / "results" / "ledger.jsonl"


def test_systems_that_store_samples_are_those_whose_runs_did() -> None:
    rows = [row for row in read(LEDGER) if row.method in BUILT_IN and not row.overrides]
    stored = {row.method: row.figures["memory_bytes"] > 0 for row in rows}
    assert len(stored) > 15
    assert stored == {name: BUILT_IN[name].stores_samples for name in stored}


def test_every_system_of_the_paper_has_a_group_and_additions_stand_apart() -> None:
    *of_paper, additions = GROUPS
    assert {group_of(name) for name in PAPER_METHODS} == set(of_paper)
    assert group_of("a-plug-in") == group_of("ncm") == additions
    assert by_group(["mine", "joint", "owm", "icarl", "clom"]) == ["clom", "icarl", "owm", "joint", "mine"]
