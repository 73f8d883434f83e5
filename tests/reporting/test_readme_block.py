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
from clom.reporting.paper.numbers import experiment_label
from clom.reporting.paper.protocol import read_trials
from clom.reporting.readme_block import BEGIN, CURVES, END, digest_curves, render_digest, with_digest
from reporting.paper.test_tables import made_up

ROOT = Path(__file__).parents[2]
CIL = {"clom": 0.9, "hat": 0.5, "bic": 0.95, "a-rps": 0.93, "icarl": 0.8, "owm": 0.7, "joint": 0.99, "finetune": 0.2}


def rows_of(experiment: str, cil: dict[str, float]) -> list[Row]:
    return [made_up(method, experiment=experiment, cil=value) for method, value in cil.items()]


def tables_of(text: str) -> dict[str, list[list[str]]]:
    """The lines of each table, by its first head."""
    found: dict[str, list[list[str]]] = {}
    for part in text.split("\n\n"):
        lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
        if lines:
            found[lines[0][0]] = [lines[0], *lines[2:]]
    return found


def first_cells(digest: str) -> list[str]:
    return [line[0] for line in tables_of(digest).get("CIL", [])[1:]]


def test_the_readme_in_the_repository_is_up_to_date() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(BEGIN) == readme.count(END) == 1
    rows = read(ROOT / "results" / "ledger.jsonl")
    digest = render_digest(rows, read_trials(ROOT / "results" / "searches"))
    assert readme == with_digest(readme, digest), "README.md is out of date: run 'make results'"


def test_only_the_text_between_the_markers_changes() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = with_digest(text, "new\n")
    assert once == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert with_digest(once, "new\n") == once
    for broken in ("nothing", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"):
        with pytest.raises(UserError, match="results:begin"):
            with_digest(broken, "new")


def test_it_shows_the_best_rivals_by_mean_rank_and_joint_training() -> None:
    digest = render_digest(rows_of("mnist-5t", CIL | {"clom+": 0.1}), {})
    assert first_cells(digest) == ["CLOM", "CLOM+", "BiC", "RPS-Net", "iCaRL", "Joint training"]
    other = {"clom": 0.9, "bic": 0.1, "a-rps": 0.2, "icarl": 0.8, "owm": 0.7, "hat": 0.75}
    digest = render_digest(rows_of("mnist-5t", CIL) + rows_of("cifar10-5t", other), {})
    # Ranks: RPS-Net 2 and 4, iCaRL 3 and 1, BiC 1 and 5, OWM 4 and 3, HAT 5 and 2. By the mean, HAT would be third.
    assert first_cells(digest) == ["CLOM", "iCaRL", "BiC", "RPS-Net", "Joint training"]


def test_experiments_are_in_the_paper_s_order_and_those_without_runs_are_left_out() -> None:
    rows = [made_up(experiment=name) for name in ("digits-5t", "tinyimagenet-10t", "cifar100-10t", "mine")]
    rows += [made_up("hat", experiment="mnist-5t", overrides={"memory_per_class": 5}), made_up("joint")]
    tables = tables_of(render_digest(rows, {}))
    assert tables["CIL"][0][1:-3] == ["MNIST-5T", "CIFAR100-10T", "T-ImageNet-10T", "digits-5t"]
    assert tables["TIL"][1] == ["CLOM", "–", "99.0", "99.0", "99.0"]
    assert tables["CIL"][2][:3] == ["Joint training", "90.0", "–"]


def test_every_row_says_what_it_cost() -> None:
    def run(method: str, experiment: str, passes: float, minutes: float, search: str) -> Row:
        row = made_up(method, experiment=experiment, passes=passes, allowance=1000.0, cpu_minutes=minutes)
        return replace(row, search=search)

    rows = [run("clom", "mnist-5t", 980, 8, "a"), run("clom", "cifar10-5t", 1000, 14, "b")]
    rows += [run("hat", "mnist-5t", 500, 3, "c"), run("joint", "mnist-5t", 700, 4, "not recorded")]
    tables = tables_of(render_digest(rows, {"a": 6, "b": 6, "c": 5}))
    assert tables["CIL"][0][-3:] == ["trials", "passes", "core minutes"]
    assert {line[0]: line[-3:] for line in tables["CIL"][1:]} == {
        "CLOM": ["6", "98 to 100%", "11.0"],
        "HAT": ["5", "50%", "3.0"],
        "Joint training": ["–", "70%", "4.0"],
    }
    assert "What each row cost: trials" in render_digest(rows, {})
    earlier = render_digest([*rows, made_up("hat", experiment="digits-5t", cpu_minutes=99.0)], {"c": 5})
    assert "What each row cost on MNIST-5T, CIFAR10-5T alone: trials" in earlier
    assert tables_of(earlier)["CIL"][2][-3:] == ["5", "50%", "3.0"], "runs from before the protocol do not count"
    without = [made_up(cpu_minutes=2.0), made_up(experiment="cifar10-5t")]
    costs = tables_of(render_digest(without, {}))["CIL"][1][-3:]
    assert costs == ["–", "–", "–"]


def test_the_picture_is_of_the_systems_in_the_table() -> None:
    rows = rows_of("mnist-5t", CIL)
    assert list(digest_curves(rows)["mnist-5t"]) == ["clom", "bic", "a-rps", "icarl", "joint"]
    assert render_digest(rows, {}).count(f"]({CURVES})") == 1
    silent = [replace(row, by_task={}) for row in rows]
    assert CURVES not in render_digest(silent, {})
    assert digest_curves(silent) == {}


def test_it_states_where_clom_is_not_first() -> None:
    digest = render_digest(rows_of("mnist-5t", CIL) + rows_of("digits-5t", {"clom": 0.9, "hat": 0.5}), {})
    assert "Rank of CLOM by CIL: 3 of 7 on MNIST-5T (below BiC, RPS-Net); 1 of 3 on digits-5t." in digest
    assert "Rank of CLOM by TIL: 1 of 7 on MNIST-5T; 1 of 3 on digits-5t." in digest
    assert "a reference, not an upper bound" in digest
    crowded = render_digest(rows_of("mnist-5t", CIL | {"owm": 0.91, "pass": 0.92, "ccg": 0.94}), {})
    assert "6 of 9 on MNIST-5T (below BiC, CCG, RPS-Net and 2 more)." in crowded


def test_smoke_runs_are_left_out() -> None:
    rows = [made_up(), made_up("hat", budget="smoke")]
    assert "smoke" not in render_digest(rows, {})
    assert first_cells(render_digest(rows, {})) == ["CLOM"]
    assert first_cells(render_digest(rows[1:], {})) == []


def test_other_experiments_are_shown_if_there_is_nothing_else() -> None:
    assert "| CIL | mine |" in render_digest([made_up(experiment="mine")], {})
    assert "mine |" not in render_digest([made_up(experiment="mine"), made_up()], {})


def test_it_says_whether_work_and_search_were_equal() -> None:
    rows = rows_of("mnist-5t", CIL)
    before = render_digest(rows, {})
    assert "Equal work: none of the 8 runs has counted" in before
    assert "Equal search: none of the 8 runs has a recipe from" in before
    assert "equal work and equal tuning are not shown" in before
    after = [replace(made_up(row.method, passes=1, allowance=2), search="mnist-5t-x") for row in rows]
    assert "Equal work: all 8 runs have counted" in render_digest(after, {})
    assert "equal work and equal tuning are not shown" not in render_digest(after, {})
    mixed = render_digest([*after[1:], rows[0]], {})
    assert "Equal work: all 7 runs have counted" in mixed
    assert "1 run without counted passes or a recorded search is left out: CLOM." in mixed


def results_section() -> tuple[str, str]:
    """The README's Results: between the markers, and around them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Results\n")[2].partition("\n## ")[0]
    before, _, rest = section.partition(BEGIN)
    block, _, after = rest.partition(END)
    return block, before + after


def accuracies() -> dict[tuple[str, str, str], str]:
    """By label, experiment and measure, computed anew from the lines of the ledger."""
    runs = [json.loads(line) for line in (ROOT / "results" / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    runs = [run for run in runs if not run.get("superseded") and run["budget"] == "cpu"]
    fair = [run.get("search") and run["figures"].get("passes") is not None for run in runs]
    with_fair = {run["experiment"] for run, is_fair in zip(runs, fair, strict=True) if is_fair}
    values: dict[tuple[str, str, str], list[float]] = {}
    for run, is_fair in zip(runs, fair, strict=True):
        if run["overrides"] or (run["experiment"] in with_fair and not is_fair):
            continue
        for measure in ("til", "cil"):
            key = method_label(run["method"]), experiment_label(run["experiment"]), measure.upper()
            values.setdefault(key, []).append(100 * run["figures"][measure])
    return {
        key: f"{fmean(some):.1f}" + (f" ± {stdev(some):.1f}" if len(some) > 1 else "") for key, some in values.items()
    }


def test_every_accuracy_in_the_readme_is_in_the_ledger() -> None:
    block, around = results_section()
    ledger = accuracies()
    shown = {
        (label, experiment, measure): cell
        for measure, (heads, *body) in tables_of(block).items()
        for label, *cells in body
        for experiment, cell in zip(heads[1:], cells, strict=True)
        if experiment not in ("trials", "passes", "core minutes")
    }
    assert len(shown) > 20
    assert shown == {key: ledger.get(key, "–") for key in shown}
    claimed = re.findall(r"\b\d+\.\d\b|\b\d+(?:\.\d+)?(?= ?%| percent)", around)
    printed = {text.split(" ")[0] for text in ledger.values()}
    assert set(claimed) <= printed, "accuracies that no run in the ledger has"
