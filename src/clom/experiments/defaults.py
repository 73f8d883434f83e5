"""Defaults of an experiment: the method's recipe, and a network for the size of the images.

Tested by tests/experiments/test_defaults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.experiments.catalogue import BUDGETS, Budget, Experiment, read_recipe
from clom.experiments.plain_yaml import read_yaml
from clom.settings import merged

OTHER_IMAGES = 1500
"""Number of training images for which the recipes' section `other` takes about the time of budget cpu."""
_TINY, _SMALL = 17, 28  # pixels up to which a small network is enough


def recipe_for(
    method: str, variant: str, experiment: Experiment, budget: Budget, n_train: int | None
) -> dict[str, Any]:
    """The recipe of a method, from general to specific: all experiments, this experiment; all budgets, this budget.

    An experiment that is not built in uses the section `other`, with fewer epochs at budget cpu if there are many
    images (`n_train`, if known), and may have its own settings for the method and for the `variant` of it that is run.
    """
    part = experiment.name if experiment.built_in else "other"
    settings = _at_budget(read_recipe(method), ("default", part), budget)
    if budget == "cpu" and not experiment.built_in and n_train is not None and n_train > OTHER_IMAGES:
        settings = scale_epochs(settings, OTHER_IMAGES / n_train)
    for name in dict.fromkeys((method, variant)):
        settings = on_top(settings, recipe_settings(experiment.recipe.get(name, {}), experiment, budget))
    return settings


def scale_epochs(
    settings: Mapping[str, Any], factor: float, rounding: Callable[[float], int] = round
) -> dict[str, Any]:
    """The settings with all numbers of epochs multiplied by `factor`, including those of learning-rate schedules."""
    scaled = dict[str, Any]()
    for name, value in settings.items():
        if isinstance(value, Mapping):
            scaled[name] = scale_epochs(value, factor, rounding)
        elif name in ("epochs", "first_epochs", "patience") and value:
            scaled[name] = max(1, rounding(factor * value))
        elif name in ("warmup", "horizon") and value is not None:
            scaled[name] = factor * value
        elif name == "steps" and isinstance(value, Sequence):  # of a schedule, in epochs
            scaled[name] = [factor * epoch for epoch in value]
        else:
            scaled[name] = value
    return scaled


def on_top(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A user's settings merged over a recipe, group by group; a group of another `kind` replaces the old one."""
    result = merged(settings, {})
    for name, value in recipe.items():
        old = result.get(name)
        if (
            isinstance(old, dict)
            and isinstance(value, Mapping)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            result[name] = on_top(old, value)
        else:
            result[name] = merged(value, {}) if isinstance(value, Mapping) else value
    return result


def recipe_settings(recipe: Mapping[str, Any], experiment: Experiment, budget: Budget) -> dict[str, Any]:
    """The settings of a user's recipe, which is organised by experiment and budget, by budget, or not at all.

    By experiment it has the layout of the built-in ones: `default`, `other` and names of experiments, each with `all`
    and names of budgets.
    """
    if recipe and all(_is_by_budget(part) for part in recipe.values()):
        named = experiment.name if experiment.built_in or experiment.name in recipe else "other"
        return _at_budget(recipe, ("default", named), budget)
    return _at_budget({"": recipe}, ("",), budget) if _is_by_budget(recipe) else merged(recipe, {})


@dataclass(frozen=True)
class SearchedRecipe:
    """Complete settings of a method, and the search that found them."""

    search: str
    settings: dict[str, Any]


def searched_recipe(recipe: Mapping[str, Any], experiment: Experiment, budget: Budget) -> SearchedRecipe | None:
    """What a recipe written by `clom tune` has for an experiment; None if another hand wrote the recipe."""
    parts = {name: part for name, part in recipe.items() if isinstance(part, Mapping) and "search" in part}
    if not parts:
        return None
    part = parts.get(experiment.name, {})
    if not isinstance(part.get(budget), Mapping):
        found = ", ".join(f"{name} (budget {', '.join(set(part) - {'search'})})" for name, part in parts.items())
        raise UserError(
            f"This recipe was found for {found}, not for {experiment.name} at budget {budget}. 'clom tune --two-phase' "
            "writes it for further experiments."
        )
    return SearchedRecipe(str(part["search"]), merged(part[budget], {}))


def read_recipe_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must contain settings of a method, for example 'learning: {{plan: {{epochs: 10}}}}'.")
    return content


def _at_budget(recipe: Mapping[str, Any], parts: tuple[str, ...], budget: Budget) -> dict[str, Any]:
    settings = dict[str, Any]()
    for part in parts:
        for amount in ("all", budget):
            settings = merged(settings, recipe.get(part, {}).get(amount, {}))
    return settings


def _is_by_budget(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and bool(part)
        and set(part) <= {"all", *BUDGETS}
        and all(isinstance(settings, Mapping) for settings in part.values())
    )


def network_for(pixels: int | None, budget: Budget) -> dict[str, Any]:
    """The network of the built-in experiment with images of about this size: digits, MNIST or CIFAR-10."""
    if pixels is not None and pixels <= _TINY:
        return {
            "kind": "alexnet",
            "channels": [64, 64, 128],
            "kernels": [3, 3, 2],
            "paddings": [1, 1, 0],
            "pools": [2, 2, 1],
            "hidden": 256,
            "dropout": [0.0, 0.0],
        }
    if pixels is not None and pixels <= _SMALL:
        of_budget: dict[Budget, dict[str, Any]] = {
            "smoke": {"channels": [16, 32, 32], "hidden": 64, "dropout": [0.0, 0.0]},
            "cpu": {"channels": [32, 64, 128], "hidden": 512, "dropout": [0.0, 0.0]},
            "paper": {},
        }
        return {"kind": "alexnet", **of_budget[budget]}
    of_budget = {"smoke": {"width": 8}, "cpu": {"width": 16, "stem_stride": 2}, "paper": {"width": 64}}
    return {"kind": "resnet18", **of_budget[budget]}
