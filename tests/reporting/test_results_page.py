"""The page of results says what the ledger says, and is what `make results` would write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clom.cli import main
from clom.experiments.ledger import add, read
from clom.methods.deviations import COMMON, DEVIATIONS
from clom.reporting.paper.protocol import read_trials
from clom.reporting.readme_block import BEGIN, CURVES, END, render_digest
from clom.reporting.results_page import command_of, render_page
from reporting.paper.test_tables import made_up

ROOT = Path(__file__).parents[2]


def test_the_page_in_the_repository_is_up_to_date() -> None:
    rows = read(ROOT / "results" / "ledger.jsonl")
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    trials = read_trials(ROOT / "results" / "searches")
    assert page == render_page(rows, trials), "results/README.md is out of date: run 'make results'"


def test_make_results_runs_the_command() -> None:
    assert "results: $(READY)\n\t$(BIN)/clom results\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_digits_are_held_against_mnist_and_it_is_said() -> None:
    rows = [made_up("hat", experiment="digits-5t", cil=0.5), made_up("owm", experiment="digits-5t", cil=0.6)]
    page = render_page(rows, {})
    assert "CIL on digits-5t against the paper's MNIST-5T (another data set" in page
    assert "(95.8)" not in page  # the paper's numbers stay out of the table of another data set
    assert "digits-5t CIL |" in page


def test_the_page_says_it_all() -> None:
    rows = [made_up(seed=seed, cil=cil) for seed, cil in ((0, 0.9), (1, 0.92))] + [made_up("hat", cil=0.95)]
    rows.append(made_up(overrides={"memory_per_class": 5}, cil=0.85))
    rows.append(made_up("hat", budget="smoke"))
    page = render_page(rows, {})
    assert page.index("## Budget `cpu`") < page.index("## Budget `smoke`")
    assert "| CLOM | 99.0 ± 0.0 (99.9) | 91.0 ± 1.4 (96.9) |" in page
    assert "| `clom` | 0, 1 | 99.0 ± 0.0 | 91.0 ± 1.4 |" in page
    assert "| 1 kB | 2.50 M | – | 2.0 ± 0.0 | – | by hand | abc1234 |" in page
    assert "clom run mnist-5t --method METHOD --budget cpu --seed SEED" in page
    assert "`clom run mnist-5t --method clom --budget cpu --seed 0 --set memory_per_class=5`" in page
    assert "Commits: abc1234 (4 runs). Versions: python 3.11.7, torch 2.13.0. Machines: a CPU." in page
    assert "but not HAT" in page
    assert "CLOM > HAT" in page


def test_passes_searches_and_core_minutes_are_shown_where_they_were_recorded() -> None:
    counted = [made_up(seed=seed, passes=1_500_000, allowance=2_500_000, cpu_minutes=7.0) for seed in range(2)]
    page = render_page([replace(row, search="mnist-5t-clom") for row in counted], {"mnist-5t-clom": 6})
    assert "| 2.50 M | 1,500 | 2.0 ± 0.0 | 7.0 ± 0.0 | mnist-5t-clom (6 trials) | abc1234 |" in page
    assert "| 2.50 M | – | 2.0 | – | by hand | abc1234 |" in render_page([made_up("hat")], {})


def test_runs_from_before_the_protocol_are_counted_and_in_no_table() -> None:
    counted = made_up(passes=1_500_000, allowance=2_500_000)
    rows = [replace(counted, search="mnist-5t-clom"), made_up("hat", til=0.123), made_up("hat", 1, til=0.123)]
    page = render_page(rows, {})
    assert (
        "`mnist-5t`, budget `cpu`: 1 run, 1 with counted passes, 1 with a recipe from a recorded search; 2 from before "
        "the protocol are in no table\n"
    ) in page
    assert page.count("Before the protocol: 2 runs without") == 1
    assert "12.3" not in page


def test_the_claims_come_before_the_numbers() -> None:
    page = render_page([made_up(), made_up("hat", budget="smoke")], {})
    assert page.index("## Which of the paper's claims hold here? Budget `cpu`") < page.index("## Budget `cpu`")
    assert page.count("## Which of the paper's claims") == 1, "smoke runs say nothing"


def test_all_experiments_stand_beside_each_other() -> None:
    page = render_page([made_up(forgetting=0.123), made_up("hat", experiment="digits-5t")], {})
    *_, tables = page.partition("### All experiments")
    assert "| CLOM | 99.5 (99.9) | 95.0 (98.3) | – | – |" in tables
    assert "| CLOM | 12.3 | – |" in tables
    assert "| CLOM | 2.50 (1.07) | – |" in tables


def test_every_deviation_of_the_systems_in_the_ledger_is_listed_once() -> None:
    page = render_page([made_up(), made_up("hat"), made_up("derpp"), made_up("gone-plug-in")], {})
    *_, listed = page.partition("## How the systems differ from their publications")
    methods = ("clom", "clom-no-calibration", "hat", "derpp")
    for sentence in {*COMMON, *(sentence for method in methods for sentence in DEVIATIONS[method])}:
        assert listed.count(f"  - {sentence}\n") == 1
    assert not any(sentence in listed for sentence in DEVIATIONS["owm"])
    assert f"- DER++:\n  - {DEVIATIONS['derpp'][0]}\n" in listed
    assert f"- CLOM, CLOM(-c), HAT:\n  - {DEVIATIONS['clom'][0]}\n" in listed


def test_the_command_of_a_row() -> None:
    row = made_up(overrides={"data.sizes": [2, 2], "attention.binary": False}, seed=4)
    assert command_of(row) == (
        "clom run mnist-5t --method clom --budget cpu --seed 4 --set attention.binary=false --set 'data.sizes=[2, 2]'"
    )


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    add(Path("results/ledger.jsonl"), [made_up()])
    Path("README.md").write_text(f"# Mine\n{BEGIN}\n{END}\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(["results"])
        assert not end.value.code
    rows = read(Path("results/ledger.jsonl"))
    assert Path("results/README.md").read_text(encoding="utf-8") == render_page(rows, {})
    digest = render_digest(rows, {})
    assert Path("README.md").read_text(encoding="utf-8") == f"# Mine\n{BEGIN}\n{digest}{END}\n"
    assert f"]({CURVES})" in digest
    assert Path(CURVES).is_file()
