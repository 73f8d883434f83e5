"""The `paper` budget has the published numbers: those of the table, and a method's own defaults for all else."""

from __future__ import annotations

import pytest

from clom.experiments.catalogue import BUDGETS, experiment_names
from clom.experiments.config import resolve
from clom.learning.learners.contrastive import SgdHeadSettings
from clom.methods.registry import PAPER_METHODS, method_class
from clom.settings import flatten
from experiments.paper_numbers import (
    ABSENT,
    CLASSES_PER_TASK,
    EXPERIMENTS,
    NETWORK,
    OWN_NETWORK,
    TABLE,
    Numbers,
    value_at,
)


def defaults_of(method: str) -> Numbers:
    """The method's own, and those of groups that its default does not have."""
    optional = {"learning.head": SgdHeadSettings(), "head": SgdHeadSettings()}
    groups = {name: group.model_dump(mode="json") for name, group in optional.items()}
    return flatten(groups) | flatten(method_class(method).settings_type().model_dump(mode="json"))


def is_unused(name: str, found: Numbers) -> bool:
    """Numbers of other kinds of schedules and optimisers, and of crops that are not made: they have no effect."""
    group, _, last = name.rpartition(".")
    kind = found.get(f"{group}.kind")
    if group.endswith("schedule"):
        used = {"steps": ("steps", "drop"), "cosine": ("horizon",)}.get(str(kind), ())
        return (last in ("steps", "drop", "horizon") and last not in used) or (last == "every" and kind == "constant")
    if group.endswith("augmentation"):
        return last.startswith("crop_") and not found[f"{group}.crop"]
    return group.endswith("optimiser") and (
        (last == "momentum" and kind == "adam") or (last in ("trust", "clip") and kind != "lars")
    )


def test_the_table_has_every_system_of_the_paper() -> None:
    assert set(TABLE) == set(PAPER_METHODS) - {"finetune", "joint"}
    assert len(TABLE) == 19


@pytest.mark.parametrize("method", TABLE)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_published_numbers(experiment: str, method: str) -> None:
    config = resolve(experiment, method, "paper")
    found = flatten(config.settings)
    expected = {name: value_at(value, experiment) for name, value in TABLE[method].items()}
    assert {name: found.get(name, ABSENT) for name in expected} == expected
    usual = defaults_of(method)
    more = {name: value for name, value in found.items() if name not in expected and not is_unused(name, found)}
    assert {name: value for name, value in more.items() if usual[name] != value} == {}


@pytest.mark.parametrize("method", TABLE)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_same_images_and_network_for_everyone(experiment: str, method: str) -> None:
    config = resolve(experiment, method, "paper")
    assert config.data.classes_per_task == value_at(CLASSES_PER_TASK, experiment)
    assert config.data.validation == 0.1
    assert (config.data.train_per_class, config.data.test_per_class, config.data.order_seed) == (None, None, None)
    if method in OWN_NETWORK:
        return
    # SupSup, "Training loop": its MNIST network is another one.
    other = experiment == "mnist-5t" and method in ("supsup", "supsup-ood")
    expected = {"kind": "pooled-conv", "channels": (64, 128, 256)} if other else value_at(NETWORK, experiment)
    network = config.net.model_dump()
    assert {name: network[name] for name in expected} == expected
    assert network == type(config.net).model_validate(expected).model_dump()


OUR_ADDITIONS = {
    "flip_tta": False,
    "memory_fit.cross_task": None,
    "learning.order": "paper",
    "learning.cross_entropy": 0.0,
    "learning.authors_loss": False,
    "learning.head.upright": 0.25,
}
"""Settings that turn CLOM into another system than that of the paper's equations, and their values there."""


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(
    "method", ["clom", "clom-no-calibration", "clom-no-ood", "clom-odin", "hat", "supsup", "supsup-ood"]
)
def test_no_recipe_has_an_addition_of_ours(method: str, budget: str) -> None:
    for experiment in experiment_names():
        found = flatten(resolve(experiment, method, budget).settings)
        assert found["calibration"] == ("none" if method == "clom-no-calibration" else "memory")
        for name, value in OUR_ADDITIONS.items():
            assert found.get(name, value) == value, f"{name} on {experiment}"
