"""The experiments and budgets that exist, read without loading anything heavy."""

from __future__ import annotations

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


def image_shape_of(name: str) -> tuple[int, int, int]:
    """Channels, height and width of an experiment's images."""
    size = read_experiment(name)["size"]
    return size["channels"], size["pixels"], size["pixels"]
