"""The experiments and budgets that exist, read without loading anything heavy."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from clom.errors import unknown

Budget = Literal["smoke", "cpu", "paper"]
BUDGETS: dict[Budget, str] = {
    "smoke": "seconds: does everything work",
    "cpu": "ten minutes on two cores, twenty for colour images",
    "paper": "the paper's own numbers: days on a GPU",
}


def experiment_names() -> list[str]:
    folder = resources.files("clom.experiments") / "configs"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_experiment(name: str) -> dict[str, Any]:
    """The experiment's file as plain data."""
    if name not in experiment_names():
        raise unknown("experiment", name, experiment_names())
    text = (resources.files("clom.experiments") / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def read_recipe(method: str) -> dict[str, Any]:
    """A method's settings for every experiment and budget as plain data; empty if its defaults do for all of them."""
    file = resources.files("clom.experiments") / "recipes" / f"{method}.yaml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return read_recipe(content["like"]) if "like" in content else content


@cache
def read_paper() -> dict[str, Any]:
    """The paper's own numbers."""
    text = (resources.files("clom.experiments") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def paper_experiments(short: str) -> list[str]:
    """The experiments for which the paper prints a number of this system, in its order; none if it does not know it."""
    paper = read_paper()
    printed = {
        experiment
        for table in ("final_accuracy", "ood_ablation")
        for experiment, numbers in paper[table].get(short, {}).items()
        if any(number is not None for number in numbers.values())
    }
    return [experiment for experiment in paper["experiments"] if experiment in printed]


def image_shape_of(name: str) -> tuple[int, int, int]:
    """Channels, height and width of an experiment's images."""
    size = read_experiment(name)["size"]
    return size["channels"], size["pixels"], size["pixels"]
