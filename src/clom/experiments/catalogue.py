"""The available experiments, each a YAML file: built in, from installed packages, or a user's file.

| reference | location |
|---|---|
| `digits-5t` | built in: `configs/digits-5t.yaml` |
| `birds-4t` | in a package with an entry point of the group `clom.experiments` |
| `path/to/mine.yaml` | that file; the experiment is named `mine` |

The entry point's value names a package: the files are in its folder `experiments/`, or else in the package itself.
Paths in a file are relative to it. This module imports nothing heavy.

Tested by tests/experiments/test_config.py.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from clom.errors import UserError, unknown
from clom.experiments.plain_yaml import read_yaml
from clom.files import absolute
from clom.plugins import BUILT_IN
from clom.settings import Positive, PositiveNumber, Settings, explain

Budget = Literal["smoke", "cpu", "paper"]
BUDGETS: dict[Budget, str] = {
    "smoke": "seconds: a quick functional check",
    "cpu": "ten minutes on two cores, twenty for colour images",
    "paper": "the paper's settings: days on a GPU",
}
GROUP = "clom.experiments"
ENDINGS = (".yaml", ".yml")
_PATHS = ("folder", "folders", "npz")


class Size(Settings):
    """Declared size of an experiment's data set, known without reading it."""

    classes: Positive
    train_per_class: Positive
    test_per_class: Positive
    channels: Positive
    pixels: Positive

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.pixels, self.pixels


class AtBudget(Settings):
    """Overrides of one budget."""

    data: dict[str, Any] = Field(default_factory=dict)
    net: dict[str, Any] | None = None
    allowance: PositiveNumber | None = None
    """Training passes that every method may use at this budget (`clom.nets.passes`)."""


class ExperimentFile(Settings):
    """Contents of an experiment file; only `data` is required."""

    title: str = ""
    data: dict[str, Any]
    size: Size | None = None
    external: tuple[str, ...] = ()
    """External OOD data sets for `clom scores`."""
    net: dict[str, Any] | None = None
    budgets: dict[Budget, AtBudget] = Field(default_factory=dict)
    """A budget that is not listed changes nothing."""
    recipe: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings by method, on top of the method's own recipe."""


class Experiment(ExperimentFile):
    """An experiment with its name and origin."""

    name: str
    origin: str

    @property
    def built_in(self) -> bool:
        return self.origin == BUILT_IN

    def at(self, budget: Budget) -> AtBudget:
        return self.budgets.get(budget, AtBudget())


def experiment_names() -> list[str]:
    """Names of all built-in experiments, then of those from installed packages."""
    return [*_built_in_names(), *_packaged()]


def read_experiment(reference: str) -> Experiment:
    """Read an experiment by name or by the path of its file."""
    if is_path(reference):
        return _read_own(Path(os.path.expanduser(reference)))
    if reference in _built_in_names():
        text = (resources.files("clom.experiments") / "configs" / f"{reference}.yaml").read_text(encoding="utf-8")
        return Experiment(**yaml.safe_load(text), name=reference, origin=BUILT_IN)
    packaged = _packaged()
    if reference in packaged:
        path, origin = packaged[reference]
        return _read_file(path, origin)
    problem = unknown("experiment", reference, experiment_names())
    if file := next((f"{reference}{ending}" for ending in ENDINGS if Path(f"{reference}{ending}").is_file()), None):
        raise UserError(f"{problem} If you mean the file, write {file}.")
    raise problem


def size_of(name: str) -> Size | None:
    """The declared size of a named experiment's data, if it has one."""
    return read_experiment(name).size if name in experiment_names() else None


def is_path(reference: str) -> bool:
    return reference.endswith(ENDINGS) or Path(reference).name != reference


def name_of(reference: str) -> str:
    """The experiment's name in runs, tables and the ledger."""
    return Path(reference).stem if is_path(reference) else reference


def anchored(reference: str, folder: Path) -> str:
    """Resolve a reference from a file in `folder`: paths are relative to that folder, names are unchanged."""
    return str(absolute(reference, folder)) if is_path(reference) else reference


def read_recipe(method: str) -> dict[str, Any]:
    """A method's settings for each experiment and budget as plain data; empty if it has no recipe."""
    file = resources.files("clom.experiments") / "recipes" / f"{method}.yaml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return read_recipe(content["like"]) if "like" in content else content


def read_searched_recipe(method: str) -> dict[str, Any]:
    """The settings that searches found for a method, by experiment; empty if there are none.

    Each experiment has the name of its search, under `search`, and complete settings, under the budget. `clom recipes`
    writes these files.
    """
    file = resources.files("clom.experiments") / "recipes" / "searched" / f"{method}.yaml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content


# --- locating files -------------------------------------------------------------------------------------------------


def _built_in_names() -> list[str]:
    folder = resources.files("clom.experiments") / "configs"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _packaged() -> dict[str, tuple[Path, str]]:
    """Name -> file and origin. Built-in names take precedence."""
    taken, found = _built_in_names(), dict[str, tuple[Path, str]]()
    for point in entry_points(group=GROUP):
        for path in _files_of(point):
            if path.stem not in taken:
                found.setdefault(path.stem, (path, _origin(point)))
    return found


def _origin(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"


def _files_of(point: EntryPoint) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec(point.module)  # does not import the package itself
    except Exception as problem:  # importing its parent package can raise anything
        spec, why = None, f"{type(problem).__name__}: {problem}"
    else:
        why = f"there is no module '{point.module}'"
    if spec is None:
        warnings.warn(f"The experiments of {_origin(point)} cannot be found: {why}.", stacklevel=2)
        return
    folders = [Path(place) for place in spec.submodule_search_locations or [str(Path(spec.origin or "").parent)]]
    for folder in (*(folder / "experiments" for folder in folders), *folders):
        files = sorted(path for path in folder.glob("*") if path.suffix in ENDINGS)
        yield from files
        if files:
            return


# --- users' files ---------------------------------------------------------------------------------------------------


def _read_own(path: Path) -> Experiment:
    if not path.exists():
        raise UserError(f"There is no experiment file {path}.")
    if path.stem in _built_in_names():
        raise UserError(f"'{path.stem}' is the name of a built-in experiment: rename the file {path}.")
    return _read_file(path, f"file {path.absolute()}")


def _read_file(path: Path, origin: str) -> Experiment:
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("data"), dict):
        raise UserError(
            f"{path} is not an experiment: it must name its data, for example "
            "'data: {folder: my-pictures, classes_per_task: 2}'."
        )
    try:
        checked = ExperimentFile.model_validate(content)
    except ValidationError as problem:
        raise UserError(f"{path}: {explain(problem, ExperimentFile)}") from None
    values = dict(checked) | {
        "title": checked.title or path.stem,
        "data": _with_paths(checked.data, path.parent),
        "budgets": {
            budget: part.model_copy(update={"data": _with_paths(part.data, path.parent)})
            for budget, part in checked.budgets.items()
        },
    }
    return Experiment(**values, name=path.stem, origin=origin)


def _with_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make paths that are relative to the file's folder absolute."""
    result = dict(data)
    for name in _PATHS:
        given = data.get(name)
        if isinstance(given, str):
            result[name] = str(absolute(given, folder))
        elif isinstance(given, list):
            result[name] = [str(absolute(path, folder)) if isinstance(path, str) else path for path in given]
    named = data.get("set")
    if isinstance(named, str) and ".py:" in named:  # user code
        place, _, function = named.rpartition(":")
        result["set"] = f"{absolute(place, folder)}:{function}"
    return result
