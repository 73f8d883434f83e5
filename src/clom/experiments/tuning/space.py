"""Search spaces: which settings of a method are searched, and from where.

They are in the recipe files under `search`, by experiment, each on top of `default`:

    search:
      default:
        space:
          optimiser.lr: {times: [0.2, 5.0]}  # the start's value times a factor, on a log scale
          alpha: {values: [0.1, 0.2, 0.5]}   # one of these
          sparsity: {range: [0.1, 1.0]}      # anything between; `log: true` for a log scale
          length: {values: [0.5, 1.0]}       # training length as a fraction of the allowance
      digits-5t:
        published: mnist-5t                  # whose published settings the first trial uses
        keep: [augmentation]                 # except these, which are those of budget cpu

A file for `--space` has the same content, or that of a single experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from clom.errors import UserError, shorten, unknown
from clom.experiments.catalogue import Experiment, experiment_names, read_recipe
from clom.experiments.plain_yaml import read_yaml
from clom.settings import PositiveNumber, Settings, explain, flatten, merged

LENGTH = "length"
"""Name of the training length, as a fraction of the allowance, among the searched settings."""
_RATE = {"times": [0.2, 5.0]}
_DIGITS = 3  # significant digits of searched numbers

Value = bool | int | float | str | None


class Parameter(Settings):
    """The values of one searched setting: exactly one of `times`, `range` and `values`."""

    times: tuple[PositiveNumber, PositiveNumber] | None = None
    """Factors of the value that a trial starts from, between these two, on a log scale."""
    range: tuple[float, float] | None = None
    log: bool = False
    """Search `range` on a log scale."""
    values: tuple[Value, ...] | None = None
    also: tuple[str, ...] = ()
    """Other settings that get the same value or factor."""

    @model_validator(mode="after")
    def _one_kind(self) -> Parameter:
        given = [name for name in ("times", "range", "values") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of times, range and values, not {' and '.join(given) or 'none of them'}")
        limits = self.times or self.range
        if limits and not limits[0] < limits[1]:
            raise ValueError(f"the first of two limits must be the smaller one, but they are {list(limits)}")
        if self.log and (self.range is None or self.range[0] <= 0):
            raise ValueError("log is for a range of positive numbers")
        if self.times and not self.times[0] <= 1 <= self.times[1]:
            raise ValueError("factors must include 1, the value that a trial starts from")
        if self.values is not None and len(set(self.values)) < 2:
            raise ValueError("give at least two different values")
        return self


class Space(Settings):
    """What is searched on one experiment, and the settings that its trials start from."""

    space: dict[str, Parameter] = Field(default_factory=dict)
    """Settings by dotted name, and `length`."""
    published: str | None = None
    """The experiment whose published settings are the first trial's; by default the same."""
    keep: tuple[str, ...] = ()
    """Groups of settings in which the first trial does not follow the publication: network sizes, augmentations."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Settings, by dotted name, of all trials."""
    by_hand: dict[str, Any] = Field(default_factory=dict)
    """Differences of the second trial from the hand-written recipe, by dotted name."""


def space_of(variant: str, method: str, experiment: Experiment, settings: Mapping[str, Any]) -> Space:
    """The search space in the recipe of the variant or of its method, or, without one, the learning rate."""
    for name in dict.fromkeys((variant, method)):
        if sections := read_recipe(name).get("search"):
            return _of_experiment(sections, experiment, f"The recipe of '{name}'")
    return default_space(settings)


def read_space(path: Path, experiment: Experiment) -> Space:
    """The search space in a user's file."""
    content = read_yaml(path)
    if isinstance(content, Mapping) and isinstance(content.get("search"), Mapping):
        content = content["search"]
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path} is not a search space: for example 'space: {{optimiser.lr: {{times: [0.2, 5]}}}}'.")
    known = {"default", "other", experiment.name, *experiment_names()}
    by_experiment = any(name in known for name in content)
    if by_experiment and not set(content) <= known:
        raise UserError(f"{path}: {unknown('experiment', str(min(set(content) - known)), known)}")
    return _of_experiment(content if by_experiment else {"default": content}, experiment, str(path))


def default_space(settings: Mapping[str, Any]) -> Space:
    """For methods without one: the learning rate of the main optimiser, if it can be recognised."""
    names = [name for name in flatten(settings) if name.split(".")[-2:] == ["optimiser", "lr"]]
    main = min(names, key=len, default=None)
    return Space(space={main: Parameter.model_validate(_RATE)} if main else {})


def check_names(space: Space, known: Sequence[str], where: str) -> None:
    """Raise UserError for a searched setting that the method does not have."""
    searched = [name for name in space.space if name != LENGTH]
    for name in (*searched, *(other for parameter in space.space.values() for other in parameter.also)):
        if name not in known:
            raise UserError(f"{where}: {unknown('setting', name, [*known, LENGTH])}")


def rounded(value: float) -> float:
    """To a number of digits that a person would write."""
    return float(f"{value:.{_DIGITS}g}")


def _of_experiment(sections: Mapping[str, Any], experiment: Experiment, where: str) -> Space:
    named = experiment.name if experiment.built_in or experiment.name in sections else "other"
    content = dict[str, Any]()
    for name in ("default", named):
        section = sections.get(name, {})
        if not isinstance(section, Mapping):
            raise UserError(f"{where}: the search space of '{name}' is {shorten(repr(section))}, not a group.")
        # The settings of a parameter replace those of `default`; other groups are merged.
        space = dict(content.get("space", {})) | dict(section.get("space") or {})
        content = merged(content, {key: value for key, value in section.items() if key != "space"})
        content["space"] = {key: value for key, value in space.items() if value is not None}
    try:
        return Space.model_validate(content)
    except ValidationError as problem:
        raise UserError(f"{where}, search space of '{named}': {explain(problem, Space)}") from None
