"""Trials: the settings that a search starts from, those of one trial, and how long a trial trains.

The first trial has the published settings, the second those of the hand-written recipe of budget cpu; both train as
long as the allowance permits. Network and data are those of the experiment at its budget. All other trials are chosen
by the sampler: one of these two starts, and a value for each setting of the search space.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clom.data.stream import Stream
from clom.errors import UserError, unknown
from clom.experiments.allowance import epochs_of, with_passes
from clom.experiments.config import RunConfig, resolve, with_settings
from clom.experiments.defaults import scale_epochs
from clom.experiments.tuning.space import LENGTH, Parameter, Space, Value, check_names, rounded
from clom.methods.registry import method_class
from clom.settings import flatten, set_dotted

HELD_OUT = 0.2
"""Share of the training images of each class that trials are judged by."""
FIRST_TASKS = 3
TRIAL_SHARE = 0.25
"""Share of a whole run's epochs that a trial trains for."""
PRINTED_SEEDS = (0, 1, 2)
"""The seeds behind a table's mean and standard deviation."""
START = "start"
PUBLISHED, BY_HAND = "published", "by hand"

Choices = dict[str, Value]
"""What distinguishes a trial: its `start`, `length`, and a value or factor for each searched setting."""


class TooLong(UserError):
    """Even the shortest training uses more passes than are allowed."""


@dataclass(frozen=True)
class Starts:
    """The settings that trials start from, by name, and what is searched from there."""

    usual: RunConfig
    """The run with the hand-written recipe, which has the experiment's data and network."""
    settings: dict[str, dict[str, Any]]
    space: Space

    @property
    def parameters(self) -> dict[str, Parameter]:
        """All that the sampler chooses."""
        found = {LENGTH: Parameter(values=(0.5, 1.0)), **self.space.space}
        if len(self.settings) > 1:
            found = {START: Parameter(values=tuple(self.settings)), **found}
        return {name: self._with_starts(name, parameter) for name, parameter in found.items()}

    def _with_starts(self, name: str, parameter: Parameter) -> Parameter:
        """The values that trials start from are among those that can be chosen."""
        if parameter.values is None or name in (START, LENGTH):
            return parameter
        own = [flatten(settings)[name] for settings in self.settings.values() if name in flatten(settings)]
        return parameter.model_copy(update={"values": tuple(dict.fromkeys((*parameter.values, *own)))})

    def first_choices(self) -> list[Choices]:
        """The trials that come before those of the sampler: the starts as they are, at full length."""
        return [self._as_it_is(start) for start in self.settings]

    def _as_it_is(self, start: str) -> Choices:
        own = flatten(self.settings[start])
        choices: Choices = {START: start} if len(self.settings) > 1 else {}
        for name, parameter in self.parameters.items():
            if name == LENGTH:
                choices[name] = 1.0
            elif name != START:
                choices[name] = 1.0 if parameter.times else own.get(name, _any_of(parameter))
        return choices

    def trial(self, choices: Choices) -> RunConfig:
        """The run with these choices, before its length is adjusted."""
        # If published and hand-written settings are the same, there is only one start.
        settings = deepcopy(self.settings.get(str(choices.get(START)), next(iter(self.settings.values()))))
        own = flatten(settings)
        for name, parameter in self.parameters.items():
            if name in (START, LENGTH):
                continue
            for setting in (name, *parameter.also):
                if setting in own:  # another kind of head or optimiser may not have it
                    set_dotted(settings, setting, _value(choices[name], parameter, own[setting]))
        return with_settings(self.usual, settings)


def starts_of(experiment: str, method: str, budget: str, seed: int, space: Space, where: str) -> Starts:
    """The published settings and the hand-written recipe; only one of them if they are the same."""
    usual = resolve(experiment, method, budget, seed, by_hand=True)
    by_hand = _with(usual, usual.settings, space.fixed | space.by_hand)
    published = resolve(space.published or experiment, method, "paper", seed, by_hand=True).settings
    published = deepcopy(published)
    for name in space.keep:
        set_dotted(published, name, _part(usual.settings, name, where))
    named = {PUBLISHED: _with(usual, published, space.fixed)}
    if by_hand != named[PUBLISHED]:
        named[BY_HAND] = by_hand
    check_names(space, sorted({name for settings in named.values() for name in flatten(settings)}), where)
    _check_ranges(space, named, where)
    return Starts(usual, named, space)


def whole_run(
    config: RunConfig, stream: Stream, allowance: float, length: float, data: Path | None = None
) -> RunConfig:
    """The run with as many epochs as use the fraction `length` of the allowance on the whole stream.

    If that is too little for a single epoch of every phase, the whole allowance is used. All seeds that a table prints
    share one recipe, so where the work depends on the seed, the most expensive of them decides.
    """
    seeds = PRINTED_SEEDS if method_class(config.method).work_depends_on_seed else (config.seed,)
    seeded = [config.model_copy(update={"seed": seed}) for seed in seeds]
    for passes in dict.fromkeys((length * allowance, allowance)):
        try:
            fitted = [with_passes(each, stream, passes, data) for each in seeded]
            return min(fitted, key=lambda each: sum(epochs_of(each))).model_copy(update={"seed": config.seed})
        except UserError as problem:
            too_long = TooLong(str(problem))
    raise too_long


def trial_run(whole: RunConfig) -> RunConfig:
    """The trial of a whole run: a quarter of its epochs, but at least one of each phase.

    It learns only the first three tasks, from four fifths of their images (`trial_data`). So a trial on five equal
    tasks uses about 0.25 x 0.8 x 3/5 = 12% of the passes of the run that it stands for.
    """
    return with_settings(whole, scale_epochs(whole.settings, TRIAL_SHARE))


def trial_data() -> dict[str, Any]:
    """Overrides that make a run a trial."""
    return {"data.held_out": HELD_OUT, "data.first_tasks": FIRST_TASKS}


def _part(settings: Mapping[str, Any], name: str, where: str) -> Any:
    part: Any = settings
    for key in name.split("."):
        if not isinstance(part, Mapping) or key not in part:
            raise UserError(f"{where}: {unknown('group of settings', name, settings)}")
        part = part[key]
    return deepcopy(part)


def _with(config: RunConfig, settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = deepcopy(dict(settings))
    for name, value in changes.items():
        set_dotted(changed, name, deepcopy(value))
    return with_settings(config, changed).settings


def _value(chosen: Value, parameter: Parameter, own: Any) -> Any:
    if parameter.times:
        if not isinstance(own, int | float) or isinstance(own, bool):
            return own  # nothing to multiply, for example a term that is switched off
        scaled = own * float(chosen or 0)
        return max(1, round(scaled)) if isinstance(own, int) else rounded(scaled)
    if isinstance(chosen, float):
        return round(chosen) if isinstance(own, int) and not isinstance(own, bool) else rounded(chosen)
    return chosen


def _any_of(parameter: Parameter) -> Value:
    """For a start that does not have the setting, so that the value has no effect."""
    return (parameter.range or parameter.values or (None,))[0]


def _check_ranges(space: Space, named: Mapping[str, Mapping[str, Any]], where: str) -> None:
    for name, parameter in space.space.items():
        for start, settings in named.items():
            own = flatten(settings).get(name)
            if parameter.range and isinstance(own, int | float):
                low, high = parameter.range
                if not low <= own <= high:
                    raise UserError(
                        f"{where}: the range {[low, high]} of '{name}' does not contain the {start} value, {own}."
                    )
