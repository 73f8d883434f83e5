"""The rivals, their ranks, and the grid of their further seeds."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.experiments.grid import read_grid
from clom.experiments.ledger import Row, add
from clom.reporting.paper.numbers import EXPERIMENTS, Results
from clom.reporting.paper.rivals import RIVALS, by_mean_rank, rivals_grid
from reporting.paper.test_tables import made_up


def under_protocol(row: Row) -> Row:
    return replace(row, search="a-search", figures=row.figures | {"passes": 900_000, "allowance": 1_000_000})


def all_rivals(experiment: str, seed: int = 0) -> list[Row]:
    """The first of `RIVALS` is the best, and so on."""
    rows = [made_up(name, seed, experiment, cil=0.9 - place / 100) for place, name in enumerate(RIVALS)]
    return [under_protocol(row) for row in rows]


def test_rivals_are_the_systems_of_the_paper_that_are_not_clom_s() -> None:
    assert len(RIVALS) == 14
    assert {"hat", "supsup", "a-rps", "owm"} <= set(RIVALS)
    assert not {"clom", "clom+", "clom-odin", "supsup-ood", "joint", "finetune"} & set(RIVALS)


def test_mean_ranks_by_hand() -> None:
    first = {"hat": 0.9, "bic": 0.8, "owm": 0.7}
    second = {"bic": 0.6, "owm": 0.5, "pass": 0.95, "clom": 0.99, "joint": 0.99}
    rows = [made_up(name, cil=cil) for name, cil in first.items()]
    rows += [made_up(name, experiment="cifar10-5t", cil=cil) for name, cil in second.items()]
    # MNIST: HAT 1, BiC 2, OWM 3, PASS 4 (not run). CIFAR-10: PASS 1, BiC 2, OWM 3, HAT 4 (not run).
    results = Results(rows, "cpu")
    found = by_mean_rank(results, ["mnist-5t", "cifar10-5t"])
    assert (found[0], set(found[1:3]), found[3]) == ("bic", {"hat", "pass"}, "owm")
    assert by_mean_rank(results, ["mnist-5t"])[:3] == ["hat", "bic", "owm"]


def test_the_grid_has_the_best_of_seed_0_once_all_were_run(tmp_path: Path) -> None:
    rows = [*all_rivals("mnist-5t"), *all_rivals("cifar100-20t"), *all_rivals("cifar10-5t")[1:]]
    rows.append(under_protocol(made_up(RIVALS[-1], 1, "mnist-5t", cil=0.99)))  # another seed changes nothing
    path = tmp_path / "rivals.yaml"
    path.write_text(rivals_grid(rows), encoding="utf-8")
    blocks = read_grid(path)
    assert [(block.experiments, block.methods, block.seeds) for block in blocks] == [
        (("mnist-5t",), RIVALS[:6], (1, 2)),
        (("cifar100-20t",), RIVALS[:2], (1, 2)),
    ]


def test_runs_from_before_the_protocol_choose_nobody() -> None:
    rows = [replace(row, search="") for experiment in EXPERIMENTS for row in all_rivals(experiment)]
    with pytest.raises(UserError, match="No experiment has a run of seed 0 under the protocol"):
        rivals_grid(rows)


def test_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path / "ledger.jsonl", all_rivals("mnist-5t"))
    monkeypatch.setattr(sys, "argv", ["rivals", str(tmp_path / "ledger.jsonl")])
    runpy.run_path(str(Path(sys.modules["clom.reporting.paper.rivals"].__file__ or "")), run_name="__main__")
    assert capsys.readouterr().out == rivals_grid(all_rivals("mnist-5t"))
    monkeypatch.setattr(sys, "argv", ["rivals", str(tmp_path / "none.jsonl")])
    with pytest.raises(SystemExit, match="clom: No experiment"):
        runpy.run_path(str(Path(sys.modules["clom.reporting.paper.rivals"].__file__ or "")), run_name="__main__")
