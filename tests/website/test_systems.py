"""The generated pages of systems: what the registry, the recipes, the ledger and the paper say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clom.experiments.config import resolve
from clom.experiments.ledger import Row, read
from clom.methods.clom import ClomSettings
from clom.methods.registry import BUILT_IN
from clom.reporting.paper.numbers import Results, number_of
from clom.reporting.paper.rendering import number_text
from website.settings_table import meanings_of, settings_table
from website.systems import index_page, results, system_page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "systems"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read(ROOT / "results" / "ledger.jsonl")


def test_every_system_has_a_page_with_equations() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(BUILT_IN)
    for name, info in BUILT_IN.items():
        heading, _, text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")
        assert heading == f"# {info.short}"
        assert text.startswith("\n## Equations\n")
        assert "$$" in text
        assert f"]({name}.md)" in index_page()
    assert "\n## CLOM and its ablations\n" in index_page()
    assert "\n## With stored samples\n" in index_page()


@pytest.mark.parametrize("name", ["clom", "derpp", "ncm"])
def test_pages_say_what_the_registry_says(name: str, rows: list[Row]) -> None:
    page = system_page(name, f"# {BUILT_IN[name].short}\n\n## Equations\n\nx\n", rows)
    assert page.startswith(f"# {BUILT_IN[name].short}\n")
    assert BUILT_IN[name].keeps in page
    assert all(sentence in page for sentence in BUILT_IN[name].deviations)
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == ["## Equations", "## Settings", "## Results", "## Differences from the publication"]


def test_settings_are_those_of_the_recipes() -> None:
    table = settings_table("derpp")
    (alpha,) = (line for line in table.splitlines() if line.startswith("| `alpha` "))
    _, _, default, at_cpu, at_paper, meaning, _ = (cell.strip() for cell in alpha.split("|"))
    assert default == "`0.5`"
    assert f"`{resolve('digits-5t', 'derpp').settings['alpha']}` digits-5t<br>" in at_cpu
    assert at_cpu.endswith("others")
    assert f"`{resolve('mnist-5t', 'derpp', 'paper').settings['alpha']}`" in at_paper
    assert meaning.startswith("Weight of the loss on stored logits")


def test_meanings_of_nested_settings_are_found() -> None:
    meanings = meanings_of(ClomSettings)
    assert meanings["attention.sparsity_first"].startswith("lambda_1")
    assert not any("\n" in text for text in meanings.values())


def test_results_are_the_rows_of_the_ledger(rows: list[Row]) -> None:
    text = results("hat", rows)
    runs = Results(rows, "cpu").plain("digits-5t", "hat")  # without those from before the protocol
    seeds = ", ".join(str(row.seed) for row in runs)
    til, cil = (number_text(number_of(runs, figure)) for figure in ("til", "cil"))
    assert f"| digits-5t | `cpu` | {seeds} | {til} | {cil} | – | – |" in text
    assert " 81.9 ± 3.7 |" in text, "the paper's CIL on MNIST"
    assert results("hat", []) == "No run is recorded yet.\n"
    changed = [row for row in rows if row.method == "clom" and row.overrides]
    assert changed
    assert "Runs with changed settings" in results("clom", rows)
    both = results("clom", [*changed, *(replace(row, budget="smoke") for row in changed)])
    assert both.count("| `cpu` |") == both.count("| `smoke` |") > 0
    assert "Runs with changed settings" not in results("clom", [row for row in rows if not row.overrides])
