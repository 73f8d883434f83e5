"""Which runs an ablation compares: those that differ only in its setting, all equally long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clom.experiments.catalogue import read_experiment
from clom.experiments.ledger import Row
from clom.reporting.paper.ablations import changed_settings, gate_rows, length_of, memory_rows, view_rows
from clom.reporting.paper.numbers import Number, Results
from clom.reporting.paper.tables import make_table
from reporting.paper.test_tables import entry, made_up

SOFT = {"attention.binary": False}
SHORT = {"learning.plan.epochs": 12, "learning.plan.schedule.warmup": 0.3}
ALLOWANCE = read_experiment("cifar10-5t").at("cpu").allowance or 0.0
ALL = frozenset({"flip", "colour", "crop"})


def short(overrides: dict[str, Any], **figures: Any) -> Row:
    """A run that was fitted to half of the allowance."""
    return made_up(experiment="cifar10-5t", overrides=overrides | SHORT, allowance=ALLOWANCE / 2, **figures)


def test_the_length_of_a_run() -> None:
    assert length_of(made_up(experiment="cifar10-5t", overrides=SOFT)) == 1.0
    assert length_of(made_up(experiment="cifar10-5t", overrides=SOFT, allowance=ALLOWANCE)) == 1.0
    assert length_of(short(SOFT)) == 0.5
    by_hand = made_up(experiment="cifar10-5t", overrides=SHORT, allowance=ALLOWANCE)
    assert length_of(by_hand) is None, "other epochs within the whole allowance"
    assert length_of(made_up(experiment="cifar10-5t", overrides=SHORT)) is None, "no allowance recorded"
    assert changed_settings(short(SOFT)) == {"attention.binary"}


def test_shortened_runs_are_compared_with_each_other_alone() -> None:
    rows = [
        made_up(experiment="cifar10-5t", cil=0.9),
        short({}, cil=0.6),
        short(SOFT, cil=0.59),
        short(SOFT | {"attention.s_max": 1}, cil=0.1),
    ]
    found = gate_rows(Results(rows, "cpu"), "cifar10-5t")
    assert {kind: [row.figures["cil"] for row in some] for kind, some in found.items()} == {
        (True, 700.0): [0.6],
        (False, 700.0): [0.59],
        (False, 1.0): [0.1],
    }
    table = make_table("scale", rows)
    assert entry(table, "700, gates rounded", "CIFAR10-5T", "CIL").ours == Number(60.0, None, 1)
    assert any("may use 50% of the experiment's allowance" in note for note in table.notes)
    assert entry(make_table("main", rows), "CLOM", "CIFAR10-5T", "CIL").ours == Number(90.0, None, 1)


def test_without_shortened_runs_the_recipe_s_own_length_counts() -> None:
    rows = [made_up(experiment="cifar10-5t"), made_up(experiment="cifar10-5t", overrides=SOFT), short({}, cil=0.6)]
    found = gate_rows(Results(rows, "cpu"), "cifar10-5t")
    assert {kind: [row.figures["cil"] for row in some] for kind, some in found.items()} == {
        (True, 700.0): [0.9],
        (False, 700.0): [0.9],
    }
    assert not any("may use" in note for note in make_table("scale", rows).notes)


def test_samples_are_counted_on_runs_of_full_length() -> None:
    rows = [made_up(experiment="cifar10-5t"), short({}, cil=0.5)]
    rows.append(made_up(experiment="cifar10-5t", overrides={"memory_per_class": 0}, cil=0.7))
    found = memory_rows(Results(rows, "cpu"), "cifar10-5t")
    assert {count: [row.figures["cil"] for row in some] for count, some in found.items()} == {0: [0.7], 20: [0.9]}
    assert found[0][0].method == "clom", "a recorded run comes before one that is computed from CLOM's"


def test_augmentations_with_and_without_rotation() -> None:
    no_crop = {"learning.augmentation.crop": False}
    rows = [short({}), replace(short({}, cil=0.4), method="clom-no-ood"), short(no_crop, cil=0.3)]
    found = view_rows(Results(rows, "cpu"), "cifar10-5t")
    assert {kind: [row.figures["cil"] for row in some] for kind, some in found.items()} == {
        (ALL, 4): [0.9],
        (ALL, 1): [0.4],
        (ALL - {"crop"}, 4): [0.3],
    }
