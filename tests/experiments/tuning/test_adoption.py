"""Recorded searches become recipes, and a run says from which search its recipe came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clom.cli import main
from clom.errors import UserError
from clom.experiments import config as configs
from clom.experiments.config import resolve
from clom.experiments.ledger import Row, add, read
from clom.experiments.run import execute
from clom.experiments.tuning.adoption import adopt, recipe_part
from clom.files import write_json

TINY = {"plan.epochs": 1, "data.sizes": [2], "data.classes_per_task": None}


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes that is used in place of the built-in ones."""
    folder = tmp_path / "searched"

    def read_searched(method: str) -> dict[str, Any]:
        path = folder / f"{method}.yaml"
        return yaml.safe_load(path.read_text()) if path.exists() else {}

    monkeypatch.setattr(configs, "read_searched_recipe", read_searched)
    return folder


def record(folder: Path, experiment: str, method: str, lr: float, *others: str) -> None:
    runs = [resolve(name, method, "cpu", 0, {"optimiser.lr": lr}) for name in (experiment, *others)]
    name = f"{experiment}-{method}"
    content = {"experiment": experiment, "method": method, "search": name}
    recipe = {run.experiment: recipe_part(name, run) for run in runs}
    write_json(folder / f"{name}.json", content | {"recipe": recipe})


def test_what_was_found_is_the_recipe_from_then_on(tmp_path: Path, searched: Path) -> None:
    by_hand = resolve("cifar10-5t", "derpp")
    assert by_hand.search is None
    record(tmp_path, "cifar10-5t", "derpp", 0.123, "digits-5t")
    record(tmp_path, "digits-5t", "derpp", 0.456)
    with pytest.raises(SystemExit) as ended:
        main(["recipes", "--searches", str(tmp_path), "--out", str(searched)])
    assert not ended.value.code
    found = resolve("cifar10-5t", "derpp")
    assert (found.settings["optimiser"]["lr"], found.search) == (0.123, "cifar10-5t-derpp")
    assert found.overrides == {}
    assert found.net == by_hand.net
    own = resolve("digits-5t", "derpp")
    assert (own.settings["optimiser"]["lr"], own.search) == (0.456, "digits-5t-derpp"), "not the transferred one"
    assert resolve("cifar10-5t", "derpp", by_hand=True) == by_hand
    assert resolve("cifar10-5t", "derpp", "paper").search is None, "only the budget that was searched"
    assert resolve("mnist-5t", "derpp").search is None
    changed = resolve("cifar10-5t", "derpp", overrides={"alpha": 0.7})
    assert (changed.overrides, changed.search) == ({"alpha": 0.7}, "cifar10-5t-derpp")


def test_a_variant_has_the_recipe_of_its_method_unless_it_was_searched(searched: Path) -> None:
    searched.mkdir()
    parts = {}
    for method, temperature in (("clom", 0.11), ("clom-no-ood", 0.22)):
        run = resolve("digits-5t", method, "cpu", 0, {"learning.temperature": temperature})
        parts = {"digits-5t": recipe_part(f"digits-5t-{method}", run)}
        (searched / f"{method}.yaml").write_text(yaml.safe_dump(parts))
    uncalibrated, plain = resolve("digits-5t", "clom-no-calibration"), resolve("digits-5t", "clom-no-ood")
    assert (uncalibrated.settings["learning"]["temperature"], uncalibrated.settings["calibration"]) == (0.11, "none")
    assert uncalibrated.search == "digits-5t-clom"
    assert (plain.settings["learning"]["temperature"], plain.settings["learning"]["rotations"]) == (0.22, 1)


def test_a_network_of_its_own_is_part_of_the_recipe() -> None:
    part = recipe_part("x", resolve("mnist-5t", "supsup", "paper"))
    assert part["paper"]["net"]["kind"] == "pooled-conv"
    assert "net" not in recipe_part("x", resolve("mnist-5t", "hat", "paper"))["paper"]


def test_the_ledger_names_the_search(tmp_path: Path, searched: Path) -> None:
    searched.mkdir()
    run = resolve("digits-5t", "finetune", "smoke", 0, TINY)
    parts = {"digits-5t": recipe_part("digits-5t-finetune", run)}
    (searched / "finetune.yaml").write_text(yaml.safe_dump(parts))
    found = resolve("digits-5t", "finetune", "smoke", 0, TINY)
    execute(found, found.data.stream(None, 0), tmp_path / "run")
    add(tmp_path / "ledger.jsonl", [Row.of_run(tmp_path / "run"), Row("a", "clom", "cpu", 0)])
    by_hand, row = read(tmp_path / "ledger.jsonl")
    assert (row.search, by_hand.search) == ("digits-5t-finetune", "")
    assert '"search"' not in (tmp_path / "ledger.jsonl").read_text().splitlines()[0], "older ledgers do not change"


def test_without_searches_there_is_nothing_to_adopt(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There are no searches in .*clom tune --record"):
        adopt(tmp_path)
