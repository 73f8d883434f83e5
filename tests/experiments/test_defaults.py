"""What an experiment of one's own gets without saying it: a recipe and a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clom.errors import UserError
from clom.experiments.catalogue import BUDGETS, Budget, Experiment, read_experiment, read_recipe
from clom.experiments.config import resolve
from clom.experiments.defaults import network_for, read_recipe_file, recipe_settings
from clom.methods.registry import BUILT_IN
from clom.nets import make_net
from clom.settings import flatten


def experiment(tmp_path: Path, **content: Any) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"data": {"set": "digits", "classes_per_task": 5}, **content}))
    return str(path)


# --- recipes ---


@pytest.mark.parametrize("method", BUILT_IN)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_method_has_a_recipe_for_experiments_of_one_s_own(tmp_path: Path, method: str, budget: str) -> None:
    config = resolve(experiment(tmp_path), method, budget)
    assert (config.experiment, config.title, config.overrides) == ("mine", "mine", {})
    plan = config.settings.get("learning", config.settings).get("plan")
    if budget == "smoke" and plan:
        assert plan["epochs"] == 1, "seconds"
    if budget == "cpu" and plan:
        assert 10 <= plan["epochs"] <= 75
        assert plan["batch"] <= 32, "tasks may be of a few dozen images"


def test_many_images_are_trained_on_for_fewer_epochs(tmp_path: Path) -> None:
    """CIFAR-10 has 50,000 images: 1500 of them would be seen as often as all are now."""
    data = {"set": "cifar10", "classes_per_task": 5}
    many, some = (
        resolve(experiment(tmp_path, data=data | limit), "hat").settings["learning"]["plan"]
        for limit in ({}, {"train_per_class": 150})
    )
    assert (some["epochs"], some["schedule"]["warmup"]) == (60, 3)
    assert (many["epochs"], many["schedule"]["warmup"]) == (2, pytest.approx(0.09))
    assert resolve(experiment(tmp_path, data=data), "hat", "paper").settings["learning"]["plan"]["epochs"] == 200
    recipe = {"hat": {"learning": {"plan": {"epochs": 9}}}}
    assert resolve(experiment(tmp_path, data=data, recipe=recipe), "hat").settings["learning"]["plan"]["epochs"] == 9
    co2l = resolve(experiment(tmp_path, data=data | {"train_per_class": 300}), "co2l").settings
    assert (co2l["first_epochs"], co2l["plan"]["epochs"]) == (20, 10)


def test_other_experiments_do_not_change_built_in_ones() -> None:
    """icarl lists no cifar100-10t: that has the default, not what is for experiments of one's own."""
    recipe = read_recipe("icarl")
    assert recipe["other"]["all"]["memory"]["size"] == 200
    assert "cifar100-10t" not in recipe
    assert resolve("cifar100-10t", "icarl").settings["memory"]["size"] == 2000


def test_recipes_in_the_file_come_on_top(tmp_path: Path) -> None:
    plain = resolve(experiment(tmp_path), "hat")
    recipe = {"hat": {"memory_per_class": 3, "learning": {"plan": {"epochs": 7}}}, "clom": {"all": {"flip_tta": True}}}
    path = experiment(tmp_path, recipe=recipe)
    changed = resolve(path, "hat")
    assert changed.overrides == {}, "it is the experiment's own recipe"
    before, after = flatten(plain.settings), flatten(changed.settings)
    assert {name: after[name] for name in after if after[name] != before[name]} == {
        "memory_per_class": 3,
        "learning.plan.epochs": 7,
    }
    assert resolve(path, "clom").settings["flip_tta"]
    assert resolve(path, "clom-no-ood").settings["flip_tta"], "a variant has its method's recipe"


def test_a_variant_may_have_a_recipe_of_its_own(tmp_path: Path) -> None:
    recipe = {"clom": {"memory_per_class": 3}, "clom-no-ood": {"smoke": {"memory_per_class": 4}}}
    path = experiment(tmp_path, recipe=recipe)
    counts = {
        (method, budget): resolve(path, method, budget).settings["memory_per_class"]
        for method in recipe
        for budget in ("smoke", "cpu")
    }
    assert counts == {
        ("clom", "smoke"): 3,
        ("clom", "cpu"): 3,
        ("clom-no-ood", "smoke"): 4,
        ("clom-no-ood", "cpu"): 3,
    }


def test_a_recipe_for_no_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no method 'clomm'\. Did you mean 'clom'"):
        resolve(experiment(tmp_path, recipe={"clomm": {}}), "hat")
    with pytest.raises(UserError, match=r"no setting 'memory_pre_class'\. Did you mean 'memory_per_class'"):
        resolve(experiment(tmp_path, recipe={"hat": {"memory_pre_class": 3}}), "hat")
    with pytest.raises(UserError, match=r"A recipe's net is a group of settings, .* not 5\."):
        resolve(experiment(tmp_path, recipe={"hat": {"net": 5}}), "hat")


def test_a_group_of_another_kind_replaces_the_recipe_s(tmp_path: Path) -> None:
    assert resolve(experiment(tmp_path), "ccg").settings["network"]["kind"] == "resnet18"
    path = experiment(tmp_path, recipe={"ccg": {"network": {"kind": "conv", "channels": [4, 4, 4]}}})
    assert resolve(path, "ccg").settings["network"] == {"kind": "conv", "channels": [4, 4, 4]}
    narrow = resolve("cifar10-5t", "ccg", recipe={"network": {"width": 3}}).settings["network"]
    assert (narrow["kind"], narrow["width"], narrow["stem_stride"]) == ("resnet18", 3, 2)


TREE = {"memory_per_class": 3}


@pytest.mark.parametrize(
    ("recipe", "name", "budget", "expected"),
    [
        (TREE, "digits-5t", "cpu", TREE),
        ({"all": TREE, "smoke": {"memory_per_class": 5}}, "digits-5t", "smoke", {"memory_per_class": 5}),
        ({"all": TREE, "smoke": {"memory_per_class": 5}}, "digits-5t", "cpu", TREE),
        ({"digits-5t": {"cpu": TREE}}, "digits-5t", "cpu", TREE),
        ({"digits-5t": {"cpu": TREE}}, "digits-5t", "smoke", {}),
        ({"digits-5t": {"cpu": TREE}}, "mnist-5t", "cpu", {}),
        (
            {"default": {"all": TREE}, "digits-5t": {"cpu": {"flip_tta": True}}},
            "digits-5t",
            "cpu",
            {**TREE, "flip_tta": True},
        ),
        ({"other": {"all": TREE}}, "mine", "cpu", TREE),
        ({"other": {"all": {}}, "mine": {"all": TREE}}, "mine", "cpu", TREE),
        ({"other": {"all": TREE}}, "digits-5t", "cpu", {}),
    ],
)
def test_every_layout_of_a_recipe(recipe: dict[str, Any], name: str, budget: Budget, expected: dict[str, Any]) -> None:
    own = Experiment(data={}, name="mine", origin="file mine.yaml")
    assert recipe_settings(recipe, own if name == "mine" else read_experiment(name), budget) == expected


def test_a_recipe_that_is_given_is_recorded_as_a_change(tmp_path: Path) -> None:
    config = resolve("digits-5t", "hat", recipe={"digits-5t": {"cpu": {"memory_per_class": 3}}})
    assert config.overrides == {"memory_per_class": 3}
    again = resolve("digits-5t", "hat", recipe=TREE, overrides={"memory_per_class": 4})
    assert again.settings["memory_per_class"] == 4, "--set comes last"
    path = tmp_path / "recipe.yaml"
    path.write_text("- 1")
    with pytest.raises(UserError, match=r"recipe\.yaml must contain settings of a method"):
        read_recipe_file(path)


# --- networks ---


@pytest.mark.parametrize("budget", BUDGETS)
def test_there_is_a_network_for_every_size(tmp_path: Path, budget: Budget) -> None:
    kinds = []
    for pixels in (8, 12, 17, 18, 28, 29, 64):
        config = resolve(experiment(tmp_path, net=network_for(pixels, budget)))
        make_net(config.net, pixels)
        kinds.append(config.net.kind)
    assert kinds == ["alexnet"] * 5 + ["resnet18"] * 2
    assert network_for(None, budget)["kind"] == "resnet18", "which takes any size"


@pytest.mark.parametrize(
    ("data", "kind", "channels"),
    [
        ({"set": "digits", "classes_per_task": 5}, "alexnet", (64, 64, 128)),
        ({"set": "mnist", "classes_per_task": 5}, "alexnet", (32, 64, 128)),
        ({"set": "mnist", "classes_per_task": 5, "pixels": 32}, "resnet18", None),
        ({"set": "cifar10", "classes_per_task": 5}, "resnet18", None),
    ],
)
def test_the_network_suits_the_images(tmp_path: Path, data: dict[str, Any], kind: str, channels: object) -> None:
    config = resolve(experiment(tmp_path, data=data))
    assert config.net.kind == kind
    assert getattr(config.net, "channels", None) == channels


def test_networks_of_the_file_and_of_a_budget(tmp_path: Path) -> None:
    path = experiment(
        tmp_path,
        net={"kind": "resnet18", "width": 5},
        budgets={"smoke": {"net": {"kind": "resnet18", "width": 3}}, "cpu": {"data": {"train_per_class": 9}}},
    )
    widths = [getattr(resolve(path, budget=budget).net, "width", None) for budget in BUDGETS]
    assert widths == [3, 5, 5]
    assert [resolve(path, budget=budget).data.train_per_class for budget in BUDGETS] == [None, 9, None]
    assert getattr(resolve(path, overrides={"net.width": 4}).net, "width", None) == 4
