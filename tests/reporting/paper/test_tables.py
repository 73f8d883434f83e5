"""Tables from made-up ledgers: right numbers in the right places, dashes for the rest, nothing invented."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from clom.cli import main
from clom.cli.console import Console
from clom.cli.table import fitting
from clom.errors import UserError
from clom.experiments.ledger import Row, add
from clom.methods.registry import PAPER_METHODS
from clom.reporting.paper.numbers import (
    OTHER_SPELLINGS,
    PAPER_NAMES,
    Number,
    Results,
    method_order,
    paper_number,
    paper_systems,
)
from clom.reporting.paper.published import read_paper
from clom.reporting.paper.rendering import DASH, to_csv, to_latex, to_markdown
from clom.reporting.paper.table import Entry, Table
from clom.reporting.paper.tables import TABLES, make_table, only_rows_with


def made_up(
    method: str = "clom",
    seed: int = 0,
    experiment: str = "mnist-5t",
    budget: str = "cpu",
    overrides: dict[str, Any] | None = None,
    **figures: Any,
) -> Row:
    known = {"til": 0.99, "cil": 0.9, "cil_by_calibration": {"memory": 0.9, "none": 0.8}, "task_detection": 0.91}
    known |= {"auc_maxlogit": 0.95, "auc_msp": 0.94, "forgetting": 0.0, "parameters": 2_500_000, "memory_bytes": 1000}
    known |= {"average_incremental_til": 0.995, "average_incremental_cil": 0.95, "minutes": 2.0, "peak_memory_gb": 1.0}
    by_task: dict[str, list[Any]] = {"til": [1.0, 0.99], "cil": [1.0, 0.9], "til_by_task": [[1.0], [0.99, 0.99]]}
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    return Row(
        experiment, method, budget, seed, overrides or {}, known | figures, by_task, "abc1234", versions, "a CPU"
    )


def entry(table: Table, line: str, group: str, name: str) -> Entry:
    (row,) = (row for row in table.lines if row.label == line)
    (place,) = (i for i, column in enumerate(table.columns) if (column.group, column.name) == (group, name))
    return row.entries[place]


# --- names -----------------------------------------------------------------------------------------------------------


def test_every_system_of_the_paper_has_one_of_our_names() -> None:
    theirs = {OTHER_SPELLINGS.get(name, name) for name in paper_systems()}
    assert theirs - set(PAPER_NAMES.values()) == {"A-RPS"}, "ours is RPS-Net, which is not in the paper"
    assert set(PAPER_NAMES.values()) <= theirs
    assert len(set(PAPER_NAMES.values())) == len(PAPER_NAMES)


def test_every_method_of_ours_is_in_the_paper_or_a_reference() -> None:
    assert set(PAPER_METHODS) - set(PAPER_NAMES) == {"finetune", "joint", "a-rps"}
    assert method_order()[: len(PAPER_METHODS)] == list(PAPER_METHODS)


def test_second_spelling_of_muc() -> None:
    assert paper_number("parameters_millions", "mnist-5t", "muc") == Number(1.06)
    assert paper_number("final_accuracy", "mnist-5t", "muc", "cil") == Number(74.6, 0.45)
    assert paper_number("final_accuracy", "mnist-5t", "co2l", "cil") is None
    assert paper_number("final_accuracy", "mnist-5t", "joint", "cil") is None


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_mean_and_deviation_over_seeds() -> None:
    number = Results([made_up(seed=seed, cil=cil) for seed, cil in enumerate((0.90, 0.92, 0.97))], "cpu").number(
        "mnist-5t", "clom", "cil"
    )
    assert number is not None
    assert [number.mean, number.std] == pytest.approx([93.0, 3.605551])
    assert number.seeds == 3


def test_one_seed_has_no_deviation() -> None:
    assert Results([made_up()], "cpu").number("mnist-5t", "clom", "cil") == Number(90.0, None, 1)


def test_only_the_plain_recipe_and_the_budget_count() -> None:
    rows = [made_up(), made_up(seed=1, overrides={"memory_per_class": 5}, cil=0.1), made_up(budget="smoke", cil=0.2)]
    assert entry(make_table("main", rows), "CLOM", "MNIST-5T", "CIL") == Entry(Number(90.0, None, 1), Number(96.9, 0.3))


def test_runs_of_clom_are_runs_of_clom_without_calibration() -> None:
    table = make_table("main", [made_up()])
    assert entry(table, "CLOM(-c)", "MNIST-5T", "CIL").ours == Number(80.0, None, 1)
    assert entry(table, "CLOM(-c)", "MNIST-5T", "TIL").ours == Number(99.0, None, 1)
    assert "auc_maxlogit" not in Results([made_up()], "cpu").derived[0].figures
    # Runs of its own come first, and what CLOM's runs did not measure is not made up.
    both = [made_up(), made_up("clom-no-calibration", cil=0.7)]
    assert entry(make_table("main", both), "CLOM(-c)", "MNIST-5T", "CIL").ours == Number(70.0, None, 1)
    steps = make_table("average-incremental", [made_up()])
    assert entry(steps, "CLOM(-c)", "MNIST-5T", "CIL").ours is None


def test_curves_without_calibration_are_those_of_clom_without_calibration() -> None:
    run = made_up()
    curves = {"cil_uncalibrated": [1.0, 0.7], "task_detection_uncalibrated": [1.0, 0.75]}
    counted = replace(run, figures=run.figures | {"passes": 1000.0})
    (derived,) = Results([replace(counted, by_task=run.by_task | curves)], "cpu").derived
    assert derived.by_task["cil"] == [1.0, 0.7]
    assert not set(curves) & set(derived.by_task)
    assert derived.figures["average_incremental_cil"] == pytest.approx(0.85)
    assert derived.figures["task_detection"] == 0.75
    assert derived.figures["auc_maxlogit"] == run.figures["auc_maxlogit"], "no calibration changes it"
    incomplete = run.by_task | curves | {"cil_uncalibrated": [1.0, None]}
    (unknown,) = Results([replace(run, by_task=incomplete)], "cpu").derived
    assert not {"average_incremental_cil", "auc_maxlogit"} & set(unknown.figures)


def test_the_average_needs_all_six_experiments() -> None:
    rows = [made_up(experiment=name) for name in read_paper()["experiments"]]
    assert entry(make_table("main", rows), "CLOM", "Average", "CIL") == Entry(Number(90.0, None, 1), Number(67.9))
    assert entry(make_table("main", rows[:5]), "CLOM", "Average", "CIL").ours is None


def test_the_paper_s_numbers_are_where_they_belong() -> None:
    rows = [made_up(experiment="cifar10-5t")]
    assert entry(make_table("main", rows), "DER++", "CIFAR10-5T", "CIL").paper == Number(66.0, 1.27)
    assert entry(make_table("parameters", rows), "MUC", "", "CIFAR100-10T").paper == Number(45.06)
    assert entry(make_table("parameters", rows), "CLOM", "", "CIFAR10-5T").ours == Number(2.5, None, 1)
    assert entry(make_table("ood", rows), "SupSup (OOD in CLOM)", "CIFAR100-10T", "TaskDR").paper == Number(63.7)
    assert entry(make_table("memory", rows), "5", "", "CIFAR100-20T").paper == Number(57.7, 0.5)
    assert entry(make_table("scale", rows), "300", "CIFAR10-5T", "forgetting").paper == Number(8.2)
    turned = entry(make_table("augmentation", rows), "Crop", "CIFAR100-10T", "CIL, with rotation")
    assert turned.paper == Number(60.3)
    assert entry(make_table("average-incremental", rows), "OWM", "MNIST-5T", "CIL").paper == Number(98.5)


# --- ablations -------------------------------------------------------------------------------------------------------


def test_memory_ablation() -> None:
    rows = [
        made_up(experiment="digits-5t"),
        made_up(experiment="digits-5t", overrides={"memory_per_class": 5}, cil=0.85),
    ]
    rows.append(made_up(experiment="digits-5t", overrides={"memory_per_class": 5, "learning.rotations": 1}, cil=0.1))
    table = make_table("memory", rows)
    cils = {line.label: line.entries[-1].ours for line in table.lines}
    assert cils == {
        "0": Number(80.0, None, 1),
        "5": Number(85.0, None, 1),
        "10": None,
        "15": None,
        "20": Number(90.0, None, 1),  # the recipe keeps 20
    }


def test_scale_ablation_tells_soft_gates_from_rounded_ones() -> None:
    soft = {"attention.binary": False}
    rows = [made_up(experiment="cifar10-5t", forgetting=0.0)]
    rows += [made_up(experiment="cifar10-5t", overrides=soft, forgetting=0.01)]
    rows += [made_up(experiment="cifar10-5t", overrides=soft | {"attention.s_max": 100}, forgetting=0.2)]
    table = make_table("scale", rows)
    lost = {line.label: line.entries[0].ours for line in table.lines}
    assert lost["100"] == Number(20.0, None, 1)
    assert lost["700"] == Number(1.0, None, 1)
    assert lost["700, gates rounded"] == Number(0.0, None, 1)
    assert lost["1"] is None
    assert entry(table, "700, gates rounded", "CIFAR10-5T", "CIL").paper is None


def test_augmentation_ablation() -> None:
    flags = {name: f"learning.augmentation.{name}" for name in ("flip", "colour", "crop")}
    only_crop = {flags["flip"]: False, flags["colour"]: False}
    rows = [made_up(experiment="cifar10-5t"), made_up("clom-no-ood", experiment="cifar10-5t", cil=0.7)]
    rows.append(made_up(experiment="cifar10-5t", overrides=only_crop | {"learning.rotations": 1}, cil=0.5))
    rows.append(made_up(experiment="cifar10-5t", overrides={flags["crop"]: False}, cil=0.3))
    table = make_table("augmentation", rows)
    assert entry(table, "All", "CIFAR10-5T", "CIL, with rotation") == Entry(Number(90.0, None, 1), Number(88.0))
    assert entry(table, "All", "CIFAR10-5T", "CIL, no rotation") == Entry(Number(70.0, None, 1), Number(74.0))
    assert entry(table, "Crop", "CIFAR10-5T", "CIL, no rotation").ours == Number(50.0, None, 1)
    assert entry(table, "Crop", "CIFAR10-5T", "CIL, with rotation").ours is None
    assert entry(table, "Hflip and Color", "CIFAR10-5T", "CIL, with rotation") == Entry(Number(30.0, None, 1))


# --- how it looks ----------------------------------------------------------------------------------------------------


def test_markdown_marks_the_best_and_dashes_what_is_missing() -> None:
    rows = [made_up(seed=seed) for seed in range(3)] + [made_up("bic", cil=0.95)]
    rows += [made_up("hat", cil=0.8, seed=seed) for seed in range(3)]
    rows += [made_up("joint", cil=0.99, seed=seed) for seed in range(3)]
    text = to_markdown(make_table("main", rows, experiments=["mnist-5t"]))
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert lines["CLOM"] == "| CLOM | **99.0 ± 0.0** (99.9) | **90.0 ± 0.0** (96.9) |"
    assert lines["HAT"] == "| HAT | **99.0 ± 0.0** (99.9) | 80.0 ± 0.0 (81.9) |"
    assert lines["BiC"] == "| BiC | 99.0 (99.9) | 95.0 (85.1) |"  # higher, but of a single seed
    assert lines["Joint training"] == "| Joint training | 99.0 ± 0.0 | 99.0 ± 0.0 |"  # a reference is no competitor
    assert lines["OWM"] == f"| OWM | {DASH} (99.7) | {DASH} (95.8) |"
    assert lines["Co2L"] == f"| Co2L | {DASH} | {DASH} |"


def test_two_seeds_are_not_enough_for_bold() -> None:
    rows = [made_up(method, seed=seed) for method in ("clom", "hat") for seed in range(2)]
    assert "**" not in to_markdown(make_table("main", rows, experiments=["mnist-5t"]))
    rows += [made_up(method, seed=2) for method in ("clom", "hat")]
    assert "**" in to_markdown(make_table("main", rows, experiments=["mnist-5t"]))


def test_an_average_has_as_many_seeds_as_its_experiment_with_the_fewest() -> None:
    rows = [made_up(experiment=name, seed=seed) for name in read_paper()["experiments"] for seed in range(3)]
    assert entry(make_table("main", rows), "CLOM", "Average", "TIL").ours == Number(99.0, None, 3)
    assert entry(make_table("main", rows[:-2]), "CLOM", "Average", "TIL").ours == Number(99.0, None, 1)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_states_the_protocol(name: str) -> None:
    rows = [made_up(experiment="cifar10-5t", passes=5e5, allowance=1e6), made_up("hat", experiment="cifar10-5t")]
    clom_only = name in ("memory", "scale", "augmentation")
    work, search = (note for note in make_table(name, rows, "cpu", ["cifar10-5t"]).notes if note.startswith("Equal "))
    assert ("the run has counted" if clom_only else "1 of the 2 runs has counted") in work
    assert ("the run does not have" if clom_only else "none of the 2 runs has") in search


def test_groups_have_headings() -> None:
    rows = [made_up("joint"), made_up("mine"), made_up("pass"), made_up("bic"), made_up("hat"), made_up()]
    rows = [replace(row, experiment="birds-3t") for row in rows]
    table = make_table("main", rows, experiments=["birds-3t"])
    first_cells = [line.split(" | ")[0].strip("| ") for line in to_markdown(table).splitlines() if line[:1] == "|"]
    assert first_cells[2:] == [
        "*CLOM and its ablations*",
        "CLOM",
        "CLOM(-c)",
        "*With stored samples*",
        "HAT",
        "BiC",
        "*Without stored samples*",
        "PASS",
        "*References*",
        "Joint training",
        "*Additions and plug-ins*",
        "mine",
    ]
    console = Console(width=100, file=io.StringIO())
    console.print(*fitting(table, console))
    assert "Without stored samples" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_experiment_of_ones_own_shows_what_was_measured() -> None:
    rows = [made_up("hat", experiment="birds-3t"), made_up("mine", experiment="birds-3t"), made_up("clom")]
    table = make_table("main", rows, experiments=["birds-3t"])
    assert [line.label for line in table.lines] == ["HAT", "mine"]
    both = make_table("main", rows, experiments=["birds-3t", "mnist-5t"])
    assert {"CLOM", "HAT", "mine", "Co2L"} <= {line.label for line in both.lines}


@pytest.mark.parametrize("name", ["main", "average-incremental", "ood", "memory", "scale", "augmentation"])
def test_the_paper_s_training_is_noted_only_beside_its_experiments(name: str) -> None:
    rows = [made_up(experiment="birds-3t"), made_up()]

    def noted(*experiments: str, budget: str = "cpu") -> bool:
        return any("700 epochs" in note for note in make_table(name, rows, budget, experiments).notes)

    assert not noted("birds-3t")
    assert all([noted("mnist-5t"), noted("birds-3t", "mnist-5t"), noted()])
    assert not noted("mnist-5t", budget="paper")


def test_one_alone_is_not_the_best() -> None:
    assert "**" not in to_markdown(make_table("parameters", [made_up()]))
    assert "**" not in to_markdown(make_table("ood", [made_up()], experiments=["mnist-5t"]))


def test_latex_has_as_many_cells_as_columns() -> None:
    rows = [made_up(method, seed=seed, cil=0.88 + seed / 50) for method in ("clom", "hat") for seed in range(3)]
    table = make_table("main", rows)
    text = to_latex(table)
    lines = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    body = [line for line in lines if not line.startswith(r"\multicolumn")]
    assert len(body) == len(table.lines)
    assert len(lines) - len(body) == 3, "headings of groups"
    assert all(line.count("&") == len(table.columns) and line.endswith(r" \\") for line in body)
    assert r"\textbf{90.0}{\scriptsize $\pm$2.0} {\scriptsize (96.9)}" in text
    assert text.count("{") == text.count("}")


def test_csv_can_be_read_again() -> None:
    table = make_table("main", [made_up(seed=0), made_up(seed=1, cil=0.92)])
    records = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(records) == len(table.lines) * len(table.columns)
    (found,) = (r for r in records if (r["method"], r["experiment"], r["measure"]) == ("CLOM", "MNIST-5T", "CIL"))
    assert found == found | {"mean": "91", "std": "1.4142", "seeds": "2", "paper": "96.9", "paper_std": "0.3"}
    assert found["group"] == "CLOM and its ablations"
    (empty,) = (r for r in records if (r["method"], r["experiment"], r["measure"]) == ("Co2L", "MNIST-5T", "CIL"))
    assert empty["mean"] == empty["paper"] == ""


@pytest.mark.parametrize("width", [60, 100, 400])
def test_a_narrow_screen_gets_several_tables(width: int) -> None:
    table = make_table("main", [made_up()])
    console = Console(width=width, file=io.StringIO())
    parts = fitting(table, console)
    assert (len(parts) == 1) == (width == 400)
    assert sum(len(part.columns) - 1 for part in parts) == len(table.columns)
    for part in parts:
        console.print(part)
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("form", ["console", "markdown", "latex", "csv"])
def test_every_table_in_every_form(name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path / "ledger.jsonl", [made_up(), made_up("hat", seed=3)])
    with pytest.raises(SystemExit) as end:
        main(["table", name, "--ledger", str(tmp_path / "ledger.jsonl"), "--format", form])
    assert not end.value.code
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_tables_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path / "ledger.jsonl", [made_up()])
    with pytest.raises(SystemExit):
        main(["table", "main", "--ledger", str(tmp_path / "ledger.jsonl"), "--json"])
    content = json.loads(capsys.readouterr().out)
    table = make_table("main", [made_up()])
    assert [column["name"] for column in content["columns"]] == [column.name for column in table.columns]
    assert [line["label"] for line in content["lines"]] == [line.label for line in table.lines]
    ours = next(line for line in content["lines"] if any(entry["ours"] for entry in line["entries"]))
    (same,) = (line for line in table.lines if line.label == ours["label"])
    means = [None if entry.ours is None else entry.ours.mean for entry in same.entries]
    assert [entry["ours"] and entry["ours"]["mean"] for entry in ours["entries"]] == means


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="mnist-5t"):
        make_table("main", [made_up()], experiments=["mnist-5"])
    with pytest.raises(UserError, match="budget"):
        make_table("main", [made_up()], budget="gpu")
    with pytest.raises(SystemExit) as end:
        main(["table", "main", "--ledger", str(tmp_path / "absent.jsonl")])
    assert end.value.code == 2
    assert "clom record" in capsys.readouterr().err


@pytest.mark.parametrize(("only", "labels"), [("runs", ["HAT", "Fine-tuning"]), ("paper", ["HAT", "BiC"])])
def test_only_rows_of_runs_or_of_the_paper(only: Literal["runs", "paper"], labels: list[str]) -> None:
    table = make_table("main", [made_up("hat"), made_up("finetune")], experiments=["mnist-5t"])
    shown = [line.label for line in only_rows_with(only, table).lines]
    assert [label for label in shown if label in ("HAT", "BiC", "Fine-tuning")] == sorted(labels, key=shown.index)
    assert only_rows_with(None, table) == table
    with pytest.raises(UserError, match="leave out --only runs"):
        only_rows_with("runs", make_table("main", []))


def test_without_a_ledger_the_paper_s_numbers_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["table", "main", "--only", "paper", "--format", "csv"])
    assert not end.value.code
    shown = capsys.readouterr()
    assert "these are the paper's numbers" in shown.err
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    (clom,) = (row for row in rows if (row["method"], row["experiment"], row["measure"]) == ("CLOM", "Average", "CIL"))
    assert (clom["mean"], clom["paper"]) == ("", "67.9")


def test_paper_json_is_what_tables_expect() -> None:
    """Every experiment and measure that a table asks for has the shape that it reads."""
    content = json.loads(json.dumps(read_paper()))
    assert len(content["memory_ablation_cil"]["cifar100-10t"]) == len(
        content["memory_ablation_cil"]["samples_per_class"]
    )
    assert len(content["scale_ablation_cifar10-5t"]["cil"]) == len(content["scale_ablation_cifar10-5t"]["s"])
