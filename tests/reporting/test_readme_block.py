"""The results block of the README: which systems are shown, and that CLOM's rank is stated as the ledger has it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from clom.errors import UserError
from clom.experiments.ledger import Row, read
from clom.methods.registry import method_label
from clom.reporting.readme_block import BEGIN, END, render_digest, with_digest
from reporting.paper.test_tables import made_up

ROOT = Path(__file__).parents[2]
CIL = {"clom": 0.9, "hat": 0.5, "bic": 0.95, "a-rps": 0.93, "icarl": 0.8, "owm": 0.7, "joint": 0.99, "finetune": 0.2}


def rows_of(experiment: str, cil: dict[str, float]) -> list[Row]:
    return [made_up(method, experiment=experiment, cil=value) for method, value in cil.items()]


def first_cells(digest: str) -> list[str]:
    return [line.split(" | ")[0].removeprefix("| ") for line in digest.splitlines() if line.startswith("| ")][2:]


def test_the_readme_in_the_repository_is_up_to_date() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(BEGIN) == readme.count(END) == 1
    rows = read(ROOT / "results" / "ledger.jsonl")
    assert readme == with_digest(readme, render_digest(rows)), "README.md is out of date: run 'make results'"


def test_only_the_text_between_the_markers_changes() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = with_digest(text, "new\n")
    assert once == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert with_digest(once, "new\n") == once
    for broken in ("nothing", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"):
        with pytest.raises(UserError, match="results:begin"):
            with_digest(broken, "new")


def test_it_shows_the_best_other_systems_by_mean_cil_and_joint_training() -> None:
    digest = render_digest(rows_of("mnist-5t", CIL))
    assert first_cells(digest) == ["CLOM", "CLOM(-c)", "HAT", "BiC", "RPS-Net", "iCaRL", "Joint training"]
    other = {"clom": 0.9, "bic": 0.1, "a-rps": 0.93, "icarl": 0.8, "owm": 0.7, "pass": 0.99}
    digest = render_digest(rows_of("mnist-5t", CIL) + rows_of("cifar10-5t", other))
    assert first_cells(digest) == ["CLOM", "CLOM(-c)", "HAT", "RPS-Net", "iCaRL", "OWM", "Joint training"], (
        "BiC has the lower mean, and PASS was not run on both"
    )


def test_it_states_where_clom_is_not_first() -> None:
    digest = render_digest(rows_of("mnist-5t", CIL) + rows_of("digits-5t", {"clom": 0.9, "hat": 0.5}))
    assert "Rank of CLOM by CIL: 3 of 7 on MNIST-5T (below BiC, RPS-Net); 1 of 3 on digits-5t." in digest
    assert "Rank of CLOM by TIL: 1 of 7 on MNIST-5T; 1 of 3 on digits-5t." in digest
    assert "a reference, not an upper bound" in digest


def test_smoke_runs_are_left_out() -> None:
    rows = [made_up(), made_up("hat", budget="smoke")]
    assert "smoke" not in render_digest(rows)
    assert first_cells(render_digest(rows)) == ["CLOM", "CLOM(-c)"]
    assert first_cells(render_digest(rows[1:])) == []


def test_experiments_outside_the_usual_three_are_shown_if_there_is_nothing_else() -> None:
    assert "| method | mine CIL |" in render_digest([made_up(experiment="mine")])
    assert "mine" not in render_digest([made_up(experiment="mine"), made_up()])


def test_it_says_whether_work_and_search_were_equal() -> None:
    rows = rows_of("mnist-5t", CIL)
    before = render_digest(rows)
    assert "Equal work: none of the 8 runs has counted" in before
    assert "Equal search: none of the 8 runs has a recipe from" in before
    assert "equal work and equal tuning are not shown" in before
    after = [replace(made_up(row.method, passes=1, allowance=2), search="mnist-5t-x") for row in rows]
    assert "Equal work: all 8 runs have counted" in render_digest(after)
    assert "equal work and equal tuning are not shown" not in render_digest(after)
    assert "equal work and equal tuning are not shown" in render_digest([*after[1:], rows[0]])


def results_section() -> tuple[str, str]:
    """The README's Results: between the markers, and around them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Results\n")[2].partition("\n## ")[0]
    before, _, rest = section.partition(BEGIN)
    block, _, after = rest.partition(END)
    return block, before + after


def accuracies() -> dict[tuple[str, str, str], str]:
    """By label, experiment and measure, computed anew from the lines of the ledger."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for line in (ROOT / "results" / "ledger.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run.get("superseded") or run["overrides"] or run["budget"] != "cpu":
            continue
        figures, label = run["figures"], method_label(run["method"])
        found = {(label, "TIL"): figures["til"], (label, "CIL"): figures["cil"]}
        if run["method"] == "clom":
            found |= {("CLOM(-c)", "TIL"): figures["til"], ("CLOM(-c)", "CIL"): figures["cil_by_calibration"]["none"]}
        for (name, measure), value in found.items():
            values.setdefault((name, run["experiment"].lower(), measure), []).append(100 * value)
    return {
        key: f"{fmean(some):.1f}" + (f" ± {stdev(some):.1f}" if len(some) > 1 else "") for key, some in values.items()
    }


def test_every_accuracy_in_the_readme_is_in_the_ledger() -> None:
    block, around = results_section()
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("|")]
    heads, _, *body = lines
    ledger = accuracies()
    columns = [head.rsplit(" ", 1) for head in heads[1:]]
    shown = {
        (label, experiment.lower(), measure): cell
        for label, *cells in body
        for (experiment, measure), cell in zip(columns, cells, strict=True)
    }
    assert len(shown) > 20
    assert shown == {key: ledger[key] for key in shown}
    claimed = re.findall(r"\b\d+\.\d\b|\b\d+(?:\.\d+)?(?= ?%| percent)", around)
    printed = {text.split(" ")[0] for text in ledger.values()}
    assert set(claimed) <= printed, "accuracies that no run in the ledger has"
