"""Experiments as data: all of them resolve, the paper's carry the paper's numbers, mistakes get a suggestion."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from clom.data import catalog
from clom.errors import UserError
from clom.experiments.catalogue import BUDGETS, experiment_names, read_experiment
from clom.experiments.config import RunConfig, parse_overrides, read_settings_file, resolve
from clom.learning.schedule import Schedule
from clom.methods.derpp import Derpp
from clom.methods.registry import BUILT_IN
from clom.nets import AlexNetSettings
from clom.settings import flatten, merged, set_dotted

PAPER: dict[str, Any] = json.loads((resources.files("clom.reporting.paper") / "paper.json").read_text(encoding="utf-8"))
CLOMS = ("clom", "clom-no-calibration", "clom-no-ood")


def dotted(config: RunConfig, name: str) -> Any:
    return flatten(config.settings)[name]


def test_every_experiment_of_the_paper_is_there() -> None:
    assert set(PAPER["experiments"]) | {"digits-5t"} <= set(experiment_names())
    assert list(BUDGETS) == ["smoke", "cpu", "paper"]


@pytest.mark.parametrize("method", BUILT_IN)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("experiment", experiment_names())
def test_everything_resolves(experiment: str, budget: str, method: str) -> None:
    config = resolve(experiment, method, budget, seed=4)
    assert (config.experiment, config.method, config.budget, config.seed) == (experiment, method, budget, 4)
    assert config.data.set in catalog.names()
    again = RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
    # What a variant is must not be undone by an experiment's own values.
    for name, value in BUILT_IN[method].preset:
        assert flatten(config.settings)[name] == value
    if budget == "smoke":
        assert config.make_method(config.image_shape()).tasks == []


@pytest.mark.parametrize("experiment", experiment_names())
def test_methods_learn_the_number_of_classes_from_the_experiment(experiment: str) -> None:
    size = read_experiment(experiment).size
    assert size is not None
    config = resolve(experiment, "derpp", "smoke")
    assert config.data.n_classes() == size.classes
    method = config.make_method(config.image_shape())
    assert isinstance(method, Derpp)
    assert method.head.n_outputs == size.classes
    assert config.settings["n_classes"] is None, "a run of another part of the experiment has the same settings"
    shorter = config.make_method(config.image_shape(), n_classes=6)
    assert (shorter.settings.model_dump()["n_classes"], shorter.n_parameters() < method.n_parameters()) == (6, True)


def test_the_number_of_classes_can_be_unknown() -> None:
    """On request, and in runs of versions that had no such setting."""
    growing = resolve("digits-5t", "derpp", "smoke", overrides={"n_classes": 0})
    earlier = growing.model_copy(update={"settings": {k: v for k, v in growing.settings.items() if k != "n_classes"}})
    for config in (growing, earlier):
        method = config.make_method((1, 8, 8))
        assert isinstance(method, Derpp)
        assert method.head.n_outputs == 0


@pytest.mark.parametrize("experiment", experiment_names())
def test_the_stated_size_fits_the_split(experiment: str) -> None:
    content = read_experiment(experiment)
    n_tasks = int(experiment.rpartition("-")[2].removesuffix("t"))
    assert content.size is not None
    assert content.size.classes == n_tasks * content.data["classes_per_task"]
    assert set(content.budgets) == set(BUDGETS)


@pytest.mark.parametrize("experiment", PAPER["experiments"])
def test_the_paper_budget_has_the_papers_schedules(experiment: str) -> None:
    """0.1 more each epoch up to 1.0 at epoch 10, cosine to the end; the head's rate drops at 60, 75 and 90."""
    learning = resolve(experiment, "clom", "paper").settings["learning"]
    features = Schedule.model_validate(learning["plan"]["schedule"])
    lr = learning["optimiser"]["lr"]
    assert lr * features.factor(0, 700) == pytest.approx(0.1)
    assert lr * features.factor(5, 700) == pytest.approx(0.55)
    assert lr * features.factor(10, 700) == pytest.approx(1.0)
    rates = [features.factor(epoch, 700) for epoch in range(10, 700)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01
    head = Schedule.model_validate(learning["head"]["plan"]["schedule"])
    rates = [0.1 * head.factor(epoch, 100) for epoch in (0, 59, 60, 74, 75, 89, 90, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])


@pytest.mark.parametrize("experiment", PAPER["experiments"])
def test_variants_differ_from_clom_in_one_setting(experiment: str) -> None:
    base = flatten(resolve(experiment, "clom", "paper").settings)
    for method in ("clom-no-calibration", "clom-no-ood"):
        other = flatten(resolve(experiment, method, "paper").settings)
        assert {n: v for n, v in other.items() if base[n] != v} == dict(BUILT_IN[method].preset)


# --- overrides --------------------------------------------------------------------------------------------------------


def test_overrides_reach_method_data_and_network() -> None:
    overrides = {
        "learning.plan.epochs": 3,
        "memory_per_class": 7,
        "data.train_per_class": 30,
        "data.order_seed": 5,
        "net.hidden": 99,
    }
    config = resolve("digits-5t", "clom", "cpu", 0, overrides)
    assert dotted(config, "learning.plan.epochs") == 3
    assert dotted(config, "memory_per_class") == 7
    assert (config.data.train_per_class, config.data.order_seed) == (30, 5)
    assert isinstance(config.net, AlexNetSettings)
    assert config.net.hidden == 99
    # Nothing else moved, and the next resolution knows nothing of it.
    plain = resolve("digits-5t", "clom", "cpu", 0)
    changed = {n for n, v in flatten(config.settings).items() if flatten(plain.settings)[n] != v}
    assert changed == {"learning.plan.epochs", "memory_per_class"}
    assert plain.data.train_per_class != 30


def test_overrides_win_over_presets() -> None:
    assert (
        resolve("digits-5t", "clom-no-calibration", overrides={"calibration": "scale"}).settings["calibration"]
        == "scale"
    )


def test_a_budget_changes_only_what_it_names() -> None:
    smoke, cpu = (resolve("digits-5t", "clom", budget) for budget in ("smoke", "cpu"))
    assert dotted(smoke, "learning.plan.epochs") < dotted(cpu, "learning.plan.epochs")
    assert dotted(smoke, "learning.augmentation.flip") is dotted(cpu, "learning.augmentation.flip") is False


def test_the_run_name_tells_runs_apart() -> None:
    names = {
        resolve("digits-5t", method, budget, seed).run_name for method in CLOMS for budget in BUDGETS for seed in (0, 1)
    }
    assert len(names) == 18


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"experiment": "mnist5t"}, ["experiment 'mnist5t'", "'mnist-5t'"]),
        ({"method": "clmo"}, ["method 'clmo'", "'clom'"]),
        ({"budget": "papr"}, ["budget 'papr'", "'paper'"]),
    ],
)
def test_unknown_names_get_a_suggestion(arguments: dict[str, str], expected: list[str]) -> None:
    with pytest.raises(UserError) as problem:
        resolve(**{"experiment": "digits-5t"} | arguments)  # type: ignore[arg-type]
    assert all(text in str(problem.value) for text in [*expected, "Did you mean", "Known:"])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning.plan.epoch", 3, ["'learning.plan.epoch'", "'epochs'"]),
        ("calibraton", "none", ["'calibraton'", "'calibration'"]),
        ("attention.smax", 3, ["'attention.smax'", "'s_max'"]),
        ("learning.head.viws", 3, ["'learning.head.viws'", "'views'"]),
        ("data.train_per_clas", 3, ["'data.train_per_clas'", "'train_per_class'"]),
        ("net.hiden", 3, ["'net.hiden'", "'hidden'"]),
        ("net.kind", "resnet81", ["'resnet81'", "'resnet18'"]),
        ("zzzzzz", 3, ["'zzzzzz'", "memory_per_class"]),
    ],
)
def test_unknown_settings_get_a_suggestion(name: str, value: Any, expected: list[str]) -> None:
    with pytest.raises(UserError) as problem:
        resolve("digits-5t", overrides={name: value})
    assert all(text in str(problem.value) for text in expected)
    assert len(str(problem.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("learning.plan.epochs", "many", "learning.plan.epochs"),
        ("calibration", "magic", "calibration"),
        ("data.validation", "x", "data.validation"),
        ("net.hidden", [1], "net.hidden"),
        ("learning.head.views", "x", "learning.head.views"),
        ("learning", 3, "learning"),
        ("learning.augmentation.crop_area", [2.0, 1.0], "learning.augmentation.crop_area"),
    ],
)
def test_wrong_values_name_the_setting(name: str, value: Any, place: str) -> None:
    with pytest.raises(UserError, match=f"Setting '{place}'"):
        resolve("digits-5t", overrides={name: value})


def test_a_value_is_not_a_group() -> None:
    with pytest.raises(UserError, match="'epochs' is a value"):
        resolve("digits-5t", overrides={"learning.plan.epochs.more": 3})


def test_a_setting_of_another_head_is_refused() -> None:
    """The paper's head is trained by SGD and has no solver with iterations."""
    with pytest.raises(UserError, match=r"'learning\.head\.iterations'"):
        resolve("mnist-5t", "clom", "paper", overrides={"learning.head.iterations": 3})


# --- small parts ------------------------------------------------------------------------------------------------------


def test_parse_overrides_reads_values_as_yaml() -> None:
    pairs = ["a.b=0.5", "c=true", "d=[1, 2]", "e=text", "f=1e-3", "g=x=y", " h = null"]
    assert parse_overrides(pairs) == {
        "a.b": 0.5,
        "c": True,
        "d": [1, 2],
        "e": "text",
        "f": "1e-3",  # YAML 1.1 wants 1.0e-3 for a number; pydantic turns the text into one
        "g": "x=y",
        "h": None,
    }
    assert (
        dotted(resolve("digits-5t", overrides=parse_overrides(["learning.optimiser.lr=1e-3"])), "learning.optimiser.lr")
        == 1e-3
    )


@pytest.mark.parametrize("pair", ["epochs", "=3", "", "a=[1,"])
def test_parse_overrides_refuses(pair: str) -> None:
    with pytest.raises(UserError, match="--set"):
        parse_overrides([pair])


def test_merged_goes_group_by_group_and_changes_nothing() -> None:
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": 3, "c": {"k": 1}}
    over = {"a": {"y": {"w": 5}}, "b": {"new": 1}, "c": 7, "d": {"deep": {"er": 1}}}
    before = copy.deepcopy((base, over))
    result = merged(base, over)
    assert result == {"a": {"x": 1, "y": {"z": 2, "w": 5}}, "b": {"new": 1}, "c": 7, "d": {"deep": {"er": 1}}}
    set_dotted(result, "a.y.z", 99)
    set_dotted(result, "a.new", 99)
    set_dotted(result, "d.deep.er", 99)
    assert (base, over) == before


def test_flatten_and_set_dotted_are_inverse() -> None:
    nested = {"a": {"b": {"c": 1}, "d": [1, {"x": 2}]}, "e": None}
    flat = flatten(nested)
    assert flat == {"a.b.c": 1, "a.d": [1, {"x": 2}], "e": None}
    back: dict[str, Any] = {}
    for name, value in flat.items():
        set_dotted(back, name, value)
    assert back == nested


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("experiment", ["digits-5t", "cifar10-5t"])
def test_a_runs_config_can_be_given_back(experiment: str, budget: str, tmp_path: Path) -> None:
    net = {"net.hidden": 33} if experiment == "digits-5t" else {"net.width": 12}
    changes = {"learning.plan.batch": 17, "memory_per_class": 3, "data.test_per_class": 4, **net}
    config = resolve(experiment, "clom", budget, 2, changes)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    overrides = flatten(read_settings_file(tmp_path / "config.yaml", experiment))
    assert resolve(experiment, "clom", budget, 2, overrides) == config


def test_a_config_of_another_experiment_gives_only_its_settings(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(resolve("digits-5t").model_dump(mode="json")))
    config = resolve("mnist-5t", overrides=flatten(read_settings_file(tmp_path / "c.yaml", "mnist-5t")))
    assert config.data == resolve("mnist-5t").data
    assert config.settings == resolve("digits-5t").settings


def test_a_file_of_plain_settings(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("learning: {plan: {epochs: 3}}\nmemory_per_class: 2\n")
    assert flatten(read_settings_file(tmp_path / "s.yaml")) == {"learning.plan.epochs": 3, "memory_per_class": 2}


@pytest.mark.parametrize(
    "content", [b"a: [1,", b"- 1\n- 2", b"", b"3", b"\xff\xfe\x00", b"!!python/object/apply:os.getcwd []"]
)
def test_a_file_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"s\.yaml"):
        read_settings_file(tmp_path / "s.yaml")


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml"):
        read_settings_file(tmp_path / "absent.yaml")
