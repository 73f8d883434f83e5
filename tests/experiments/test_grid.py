"""A grid executes every run once, resumes after interruptions, and reports failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from clom.cli import main, supervised
from clom.errors import UserError
from clom.experiments.grid import Block, Cell, Outcome, cells, execute_command, read_grid
from clom.experiments.ledger import Row, add, read
from clom.locks import Lock
from clom.methods.registry import TRAINED_METHODS
from experiments.paper_numbers import EXPERIMENTS
from processes import environment

ALL = (*EXPERIMENTS, "digits-5t")
GRIDS = Path(__file__).parents[2] / "results" / "grids"
TINY = {"data.sizes": [2, 2], "data.classes_per_task": None, "plan.epochs": 1}


def grid_file(folder: Path, **changes: object) -> Path:
    block = {"experiments": ["digits-5t"], "methods": ["finetune"], "budget": "smoke", "variants": {"tiny": TINY}}
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(block | changes), encoding="utf-8")
    return path


def names_of_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the name of every run is appended when it starts."""
    begun: list[str] = []
    really_run = Cell.run

    def counted(cell: Cell, data: Path | None = None, threads: int | None = None, *compute: Any) -> Outcome:
        begun.append(cell.name)
        return really_run(cell, data, threads, *compute)

    monkeypatch.setattr(Cell, "run", counted)
    return begun


def test_a_block_is_all_combinations() -> None:
    block = Block(
        experiments=("digits-5t", "mnist-5t"),
        methods=("clom", "hat"),
        seeds=(0, 1, 2),
        variants={"": {}, "s100": {"attention.s_max": 100}},
    )
    found = cells([block, block], Path("runs"))
    assert len(found) == 2 * 2 * 3 * 2  # listed twice, executed once
    names = [cell.name for cell in found]
    assert "digits-5t-clom-cpu-s0" in names
    assert "mnist-5t-hat-cpu-s2-s100" in names
    chosen = next(cell for cell in found if cell.name == "digits-5t-hat-cpu-s1-s100")
    assert chosen.config.settings["attention"]["s_max"] == 100
    assert "attention.s_max=100.0" in chosen.command(None, 1)
    assert chosen.command(None, 1)[1:3] == ["-m", supervised.__name__], "it stops when this process ends"
    assert "--compile" in chosen.command(None, 1, compile=True)
    assert "--compile" not in chosen.command(None, 1)


def test_the_whole_paper_is_one_grid() -> None:
    """Every table of it; with one seed in place of five, which differ in nothing else."""
    blocks = read_grid(GRIDS / "paper.yaml")
    assert {(block.budget, block.seeds) for block in blocks} == {("paper", (0, 1, 2, 3, 4))}
    found = {cell.name: cell for cell in cells([block.model_copy(update={"seeds": (0,)}) for block in blocks], Path())}
    main = [f"{experiment}-{method}-paper-s0" for experiment in EXPERIMENTS for method in TRAINED_METHODS]
    gates = [f"cifar10-5t-clom-paper-s0-s{s}" for s in (1, 100, 300, 500, 700)]
    views = [
        f"{experiment}-{method}-paper-s0-{one}"
        for experiment in ("cifar10-5t", "cifar100-10t")
        for method in ("clom", "clom-no-ood")
        for one in ("flip", "colour", "crop")
    ]
    assert set(found) == {*main, *gates, *views}
    assert all(not found[name].config.overrides for name in main)
    for name in gates:
        attention = found[name].config.settings["attention"]
        assert (attention["s_max"], attention["binary"]) == (float(name.rpartition("-s")[2]), False)
    for name in views:
        augmentation = found[name].config.settings["learning"]["augmentation"]
        assert [part for part in ("flip", "colour", "crop") if augmentation[part]] == [name.rpartition("-")[2]]


def runs_of(name: str) -> dict[tuple[str, str], set[int]]:
    """Seeds by experiment and method of the runs in a grid that do not change the recipe."""
    found: dict[tuple[str, str], set[int]] = {}
    for cell in cells(read_grid(GRIDS / name), Path()):
        if not cell.config.overrides and cell.length is None:
            found.setdefault((cell.config.experiment, cell.config.method), set()).add(cell.config.seed)
    return found


def test_the_main_table_is_one_grid_but_for_the_best_rivals() -> None:
    found = runs_of("main-table.yaml")
    assert set(found) == {(experiment, method) for experiment in ALL for method in TRAINED_METHODS}
    assert all(seeds == {0, 1, 2} for (experiment, _), seeds in found.items() if experiment == "digits-5t")
    often = {
        name: {"clom", "clom+", "joint"} if name in ("mnist-5t", "cifar10-5t") else {"clom", "clom+"}
        for name in EXPERIMENTS
    }
    for experiment, methods in often.items():
        assert {method for method in TRAINED_METHODS if found[experiment, method] == {0, 1, 2}} == methods
        assert all(found[experiment, method] == {0} for method in set(TRAINED_METHODS) - methods)


def test_the_ablations_are_one_grid_and_shorter() -> None:
    chosen = cells(read_grid(GRIDS / "ablations.yaml"), Path())
    short = [cell for cell in chosen if cell.length is not None]
    assert {cell.length for cell in short} == {0.5}
    assert all(cell.length is not None for cell in chosen if cell.variant), "an ablation is half as long as the rest"
    gates = {(cell.config.settings["attention"]["s_max"], cell.config.seed) for cell in of_cifar10(short, "s")}
    assert gates == {*((float(s), 0) for s in (1, 100, 300, 500, 700)), *((s, k) for s in (1.0, 700.0) for k in (1, 2))}
    views = {
        (cell.config.experiment, cell.config.method, cell.variant): cell.config.settings["learning"]["augmentation"]
        for cell in short
        if cell.config.experiment.startswith("cifar") and not cell.variant.startswith("s")
    }
    assert len(views) == 2 * 2 * 4
    for (_, _, variant), used in views.items():
        expected = ["flip", "colour", "crop"] if variant == "all" else [variant]
        assert [part for part in ("flip", "colour", "crop") if used[part]] == expected


def of_cifar10(chosen: list[Cell], variant: str) -> list[Cell]:
    return [cell for cell in chosen if cell.config.experiment == "cifar10-5t" and cell.variant.startswith(variant)]


def test_both_grids_together_have_three_seeds_of_every_system_in_table_2() -> None:
    main, rest = runs_of("main-table.yaml"), runs_of("ablations.yaml")
    for experiment in ("cifar10-5t", "cifar100-10t"):
        for method in ("clom", "clom-no-ood", "clom-odin", "hat", "supsup", "supsup-ood"):
            assert main[experiment, method] | rest.get((experiment, method), set()) == {0, 1, 2}


def test_finished_runs_are_not_repeated_and_failures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = names_of_runs(monkeypatch)
    diverges = {**TINY, "optimiser.kind": "sgd", "optimiser.lr": 1e30}
    path = grid_file(tmp_path, variants={"tiny": TINY, "wild": diverges})
    words = ["grid", str(path), "--out", str(tmp_path / "runs"), "--ledger", str(tmp_path / "ledger.jsonl")]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert sorted(done) == ["digits-5t-finetune-smoke-s0-tiny", "digits-5t-finetune-smoke-s0-wild"]
    text = " ".join("".join(capsys.readouterr()).split())
    assert "failed: digits-5t-finetune-smoke-s0-wild" in text
    assert "diverged" in text
    assert "1 of 2 runs failed" in text
    (row,) = read(tmp_path / "ledger.jsonl")
    assert row.overrides["data.sizes"] == [2, 2]

    done.clear()
    with pytest.raises(SystemExit):
        main(words)
    assert done == ["digits-5t-finetune-smoke-s0-wild"]
    assert "2 runs, 1 of them finished" in capsys.readouterr().out


def test_a_killed_grid_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, runs = grid_file(tmp_path, seeds=[0, 1]), tmp_path / "runs"
    words = ["grid", str(path), "--out", str(runs), "--ledger", str(tmp_path / "ledger.jsonl")]
    first, second = (runs / f"digits-5t-finetune-smoke-s{seed}-tiny" / "summary.json" for seed in (0, 1))
    grid = subprocess.Popen([sys.executable, "-m", "clom", *words], env=environment(), start_new_session=True)
    while not first.exists():
        assert grid.poll() is None, "it ended before its first run did"
        time.sleep(0.05)
    os.killpg(grid.pid, signal.SIGKILL)  # the grid and its current run
    grid.wait()
    assert not second.exists()
    before = first.read_bytes(), first.stat().st_mtime_ns

    done = names_of_runs(monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert not stopped.value.code
    assert done == [second.parent.name]
    assert second.exists()
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    assert sorted(row.seed for row in read(tmp_path / "ledger.jsonl")) == [0, 1]


def start_grid(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "clom", "grid", *words]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    """Whether it runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()] + [
        int(word)
        for task in Path(f"/proc/{process}/task").iterdir()
        if task.name != str(process)
        for word in (task / "children").read_text().split()
    ]


LONG = {**TINY, "plan.epochs": 4000}
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_grid_leaves_no_run_behind(number: signal.Signals, tmp_path: Path) -> None:
    path, runs = grid_file(tmp_path, variants={"long": LONG}), tmp_path / "runs"
    grid = start_grid(str(path), "--out", str(runs))
    folder = runs / "digits-5t-finetune-smoke-s0-long"
    wait_for(lambda: (folder / "environment.json").exists())
    (run,) = children_of(grid.pid)
    grid.send_signal(number)  # to the grid alone
    output, _ = grid.communicate(timeout=60)
    try:
        wait_for(lambda: not is_alive(run), 30)
    finally:
        if is_alive(run):
            os.kill(run, signal.SIGKILL)
    assert not (folder / "summary.json").exists()
    assert not (folder / "failure.txt").exists(), "it was stopped; it did not fail"
    if number == signal.SIGTERM:
        assert grid.returncode == 143
        assert "repeat the command to continue" in output


def test_two_grids_on_one_folder_share_the_work(tmp_path: Path) -> None:
    path, runs = grid_file(tmp_path, seeds=[0, 1]), tmp_path / "runs"
    words = [str(path), "--out", str(runs), "--ledger", str(tmp_path / "ledger.jsonl")]
    grids = [start_grid(*words), start_grid(*words)]
    outputs = [grid.communicate(timeout=240)[0] for grid in grids]
    assert [grid.returncode for grid in grids] == [0, 0], outputs
    folders = [runs / f"digits-5t-finetune-smoke-s{seed}-tiny" for seed in (0, 1)]
    for folder in folders:
        assert (folder / "summary.json").exists()
        assert not (folder / "failure.txt").exists()
        assert json.loads((folder / "environment.json").read_text())["sessions"] == 1, "it was run once"
        assert "Figure:" in (folder / "log.txt").read_text(), "the log of the run that finished is kept"
    assert sorted(row.seed for row in read(tmp_path / "ledger.jsonl")) == [0, 1]


def test_a_finished_run_wins_over_an_earlier_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, runs = grid_file(tmp_path), tmp_path / "runs"
    (cell,) = cells(read_grid(path), runs)
    cell.folder.mkdir(parents=True)
    (cell.folder / "summary.json").write_text("{}")
    (cell.folder / "failure.txt").write_text("exit code 2: is being worked on")
    assert (cell.state, cell.failure) == ("finished", "")
    with pytest.raises(SystemExit) as stopped:
        main(["grid", str(path), "--out", str(runs)])
    assert not stopped.value.code
    assert "failed" not in capsys.readouterr().out


def test_a_run_that_somebody_else_works_on_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.txt").write_text("of the other one")
    for held in (folder, folder / "log.txt"):
        with Lock(held):
            assert execute_command(["no such program"], folder) == "busy"
    assert (folder / "log.txt").read_text() == "of the other one"
    assert not (folder / "failure.txt").exists()


def test_rows_of_several_processes_reach_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: add(path, [Row("a", "clom", "cpu", seed)]), range(24)))
    assert [row.seed for row in read(path)] == list(range(24))


OWN = """
data: {set: digits, sizes: [2, 2], train_per_class: 12, test_per_class: 4}
budgets: {smoke: {allowance: 1320}}
"""


def shortened(folder: Path, length: float) -> Path:
    """Ten epochs of fine-tuning would use the allowance: 11 images of 4 classes, forward and backward."""
    (folder / "mine.yaml").write_text(OWN, encoding="utf-8")
    return grid_file(folder, experiments=["mine.yaml"], variants={"": {"plan.epochs": 10}}, length=length)


def test_the_length_of_a_block_is_a_fraction_of_the_allowance(tmp_path: Path) -> None:
    (cell,) = cells(read_grid(shortened(tmp_path, 0.45)), tmp_path / "runs")
    assert cell.name == "mine-finetune-smoke-s0-length0.45"
    command = cell.command(None, 1)
    assert command[command.index("--allowance") + 1] == "594"
    assert "plan.epochs=4" in command, "as many as fit"
    assert "plan.epochs=10" not in command
    longer = cells(read_grid(shortened(tmp_path, 1.0)), tmp_path / "runs")[0]
    assert longer.fitted().settings["plan"]["epochs"] == 10
    assert longer.name != cell.name


def test_a_shortened_run_is_recorded_with_its_share_of_the_allowance(tmp_path: Path) -> None:
    path, runs = shortened(tmp_path, 0.5), tmp_path / "runs"
    with pytest.raises(SystemExit) as stopped:
        main(["grid", str(path), "--out", str(runs), "--ledger", str(tmp_path / "ledger.jsonl")])
    assert not stopped.value.code
    (row,) = read(tmp_path / "ledger.jsonl")
    assert (row.figures["allowance"], row.overrides["plan.epochs"]) == (660.0, 5)
    assert row.figures["passes"] <= 660
    (cell,) = cells(read_grid(path), runs)
    (tmp_path / "mine.yaml").write_text(OWN.replace("1320", "13200"), encoding="utf-8")
    assert cell.fitted().settings["plan"]["epochs"] == 5, "a run that has begun is not fitted again"


def test_a_run_that_cannot_be_so_short_fails_alone(tmp_path: Path) -> None:
    (cell,) = cells(read_grid(shortened(tmp_path, 0.05)), tmp_path / "runs")
    assert cell.run() == "failed"
    assert "cannot learn mine with 66 training passes" in cell.failure


def test_a_length_needs_an_allowance(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits-5t has no allowance at budget smoke"):
        cells(read_grid(grid_file(tmp_path, length=0.5)), tmp_path)
    with pytest.raises(UserError, match="length"):
        read_grid(grid_file(tmp_path, length=1.5))


def test_a_cluster_gets_one_job_for_each_run(tmp_path: Path) -> None:
    path = grid_file(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["grid", str(path), "--out", str(tmp_path / "runs"), "--cluster", "local"])
    assert not stopped.value.code
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["method"] == "finetune"


def test_names_are_checked_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="finetune"):
        cells(read_grid(grid_file(tmp_path, methods=["finetun"])), tmp_path)
    with pytest.raises(UserError, match="experiments"):
        read_grid(grid_file(tmp_path, experimnts=["x"]))
    (tmp_path / "bad.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="must contain"):
        read_grid(tmp_path / "bad.yaml")


def test_the_ledger_replaces_and_sorts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    add(path, [Row("b", "clom", "cpu", 0, figures={"til": 0.1}), Row("a", "clom", "cpu", 1)])
    add(path, [Row("b", "clom", "cpu", 0, figures={"til": 0.123456789}), Row("b", "clom", "cpu", 0, {"x": 1})])
    rows = read(path)
    assert [row.experiment for row in rows] == ["a", "b", "b"]
    assert rows[2].figures == {"til": 0.12346}


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no summary\.json"):
        Row.of_run(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("nonsense\n")
    with pytest.raises(UserError, match="not a ledger"):
        read(tmp_path / "ledger.jsonl")


def test_the_runs_of_a_grid_keep_to_the_allowance_of_their_experiment(tmp_path: Path) -> None:
    (with_one,) = cells([Block(experiments=("digits-5t",), methods=("hat",))], tmp_path)
    assert " ".join(with_one.command(None, 1)).endswith("--allowance experiment")
    assert " ".join(with_one.command(None, 1, allowance="none")).endswith("--allowance none")
    (without,) = cells([Block(experiments=("digits-5t",), methods=("hat",), budget="smoke")], tmp_path)
    assert "--allowance" not in without.command(None, 1)
