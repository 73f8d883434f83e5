"""Experiments as data: one YAML file each, resolved into the one `RunConfig` that a run needs and records."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from clom import machine
from clom.data.sources import DataSettings
from clom.errors import UserError, shorten, unknown
from clom.experiments.catalogue import BUDGETS, Budget, read_experiment, read_recipe
from clom.experiments.plain_yaml import parse_yaml, read_yaml
from clom.methods.families.base import Method
from clom.methods.registry import METHODS, method_class, method_info
from clom.nets import NetSettings
from clom.nets.size_limit import Allowance
from clom.plugins import origins, require
from clom.settings import Settings, merged, set_dotted

S = TypeVar("S", bound=Settings)

_BYTES_PER_WEIGHT = 16  # itself, its gradient and what optimisers keep
_MOST_FINDINGS = 10


class RunConfig(Settings):
    """Everything that decides a run's outcome."""

    experiment: str
    method: str
    budget: Budget
    seed: int
    data: DataSettings
    net: NetSettings
    settings: dict[str, Any]
    """The method's own settings, all of them, as its `settings_type` resolved them."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """What differs from the experiment's and the method's recipe, by dotted name; it is contained in the above."""
    plugins: dict[str, str] = Field(default_factory=dict)
    """Where what is not built in comes from, by kind. It is only told: nothing is ever loaded because of it."""

    @model_serializer(mode="wrap")
    def _leave_out_no_plugins(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        return values if self.plugins else {name: value for name, value in values.items() if name != "plugins"}

    def make_method(self, image_shape: Sequence[int]) -> Method:
        """The method, untrained; refused if its network would need more than this machine's memory."""
        maker = method_class(self.method)
        settings = maker.settings_type.model_validate(self.settings)
        numbers = (machine.memory_bytes() or 2**36) // _BYTES_PER_WEIGHT
        with Allowance(numbers, 10**6, f"The network of these settings is too large for this machine: {self.net!r}."):
            return maker(self.net, settings, image_shape, self.seed)

    @property
    def run_name(self) -> str:
        return f"{self.experiment}-{self.method}-{self.budget}-s{self.seed}"


def resolve(
    experiment: str,
    method: str = "clom",
    budget: str = "cpu",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The experiment's own values, then the budget's, then the method's variant, then `overrides` (dotted names).

    An override may start with `data.` or `net.`; anything else is a setting of the method.
    """
    content = read_experiment(experiment)
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    chosen = content["budgets"][budget]
    maker = method_class(method)
    data = merged(content["data"], chosen.get("data", {}))
    settings = _recipe(maker.name, experiment, budget)
    # The same network for everyone, unless a system was published with one of its own.
    net = settings.pop("net", None) or merged(chosen.get("net", content.get("net")), {})
    for name, value in [*method_info(method).preset, *(overrides or {}).items()]:
        first, _, rest = name.partition(".")
        target = {"data": data, "net": net}.get(first, settings)
        set_dotted(target, rest if first in ("data", "net") else name, value)
    config = RunConfig(
        experiment=experiment,
        method=method,
        budget=budget,
        seed=seed,
        data=_checked(DataSettings, data, "data."),
        net=_checked(_net_type(net), net, "net."),
        settings=_checked(maker.settings_type, settings).model_dump(mode="json"),
        plugins=origins({METHODS: method}, versions=False),
    )
    if not overrides:
        return config
    return config.model_copy(update={"overrides": _changes(resolve(experiment, method, budget, seed), config)})


def require_plugins(content: Mapping[str, Any], needed_by: str) -> None:
    """Refuse what a run's `config.yaml` says if it was made with something that is not known here."""
    require({METHODS: content.get("method")}, content.get("plugins"), needed_by)


def _changes(usual: RunConfig, config: RunConfig) -> dict[str, Any]:
    """What differs from the recipe, however it was asked for."""
    before, after = (
        flatten({**dump["settings"], "data": dump["data"], "net": dump["net"]})
        for dump in (usual.model_dump(mode="json"), config.model_dump(mode="json"))
    )
    return {name: value for name, value in sorted(after.items()) if name not in before or before[name] != value}


def _recipe(method: str, experiment: str, budget: str) -> dict[str, Any]:
    """From general to special: for all experiments, then for this one; for all budgets, then for this one."""
    recipe, settings = read_recipe(method), dict[str, Any]()
    for part in ("default", experiment):
        for amount in ("all", budget):
            settings = merged(settings, recipe.get(part, {}).get(amount, {}))
    return settings


def _checked(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    try:
        return kind.model_validate(values)
    except ValidationError as problem:
        raise explain(problem, kind, prefix) from None


def _net_type(net: Mapping[str, Any]) -> type[NetSettings]:
    kinds: dict[str, type[NetSettings]] = {kind.model_fields["kind"].default: kind for kind in get_args(NetSettings)}
    name = str(net.get("kind"))  # whatever was given: a list could not be looked up
    if name not in kinds:
        raise unknown("network", name, kinds)
    return kinds[name]


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` texts; values are read as YAML, so that `0.5`, `true` and `[1, 2]` mean what they say."""
    overrides = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"--set takes name=value, for example --set learning.plan.epochs=10; got '{shorten(pair)}'."
            )
        try:
            overrides[name.strip()] = parse_yaml(value)
        except ValueError as problem:
            raise UserError(f"The value of --set {name[:100]} cannot be read: {problem}.") from None
    return overrides


def read_settings_file(path: Path, experiment: str | None = None) -> dict[str, Any]:
    """A YAML file with settings, or a run's `config.yaml`: of the same experiment its data and network count, too."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold names and values, for example 'learning: {{plan: {{epochs: 10}}}}'.")
    settings = content.get("settings")
    if not isinstance(settings, dict):
        return content
    same = experiment is not None and content.get("experiment") == experiment
    return settings | {group: content[group] for group in ("data", "net") if same and group in content}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def explain(problem: ValidationError, settings: type[Settings], prefix: str = "") -> UserError:
    """Pydantic's findings in one sentence each, with a suggestion for a misspelt name."""
    findings = [(_Place.of(settings, finding["loc"]), finding) for finding in problem.errors()]
    # Where one of several groups is allowed, pydantic reports about each; the one that fits best is what was meant.
    count = Counter(place.choice for place, _ in findings)
    best: dict[str, tuple[str, str]] = {}
    for choice in sorted(filter(None, count), key=lambda choice: count[choice]):
        best.setdefault(choice[0], choice)
    lines = []
    for place, finding in findings:
        if place.choice and best[place.choice[0]] != place.choice:
            continue
        if finding["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(finding["loc"][-1]), place.known, n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(place.known)}."
            lines.append(f"There is no setting '{prefix}{shorten(place.name)}'.{hint}")
        else:
            what = f"{finding['msg'].lower()}, got {shorten(repr(finding['input']))}"
            lines.append(f"Setting '{prefix}{shorten(place.name)}': {what}.")
    more = [f"... and {len(lines) - _MOST_FINDINGS} more."] if len(lines) > _MOST_FINDINGS else []
    return UserError("\n".join([*lines[:_MOST_FINDINGS], *more]))


@dataclass(frozen=True)
class _Place:
    """Where a finding is: its dotted name, the names that exist there, and the group assumed where several may be."""

    name: str
    known: list[str]
    choice: tuple[str, str] | None

    @staticmethod
    def of(settings: type[Settings], path: tuple[int | str, ...]) -> _Place:
        parts: list[str] = []
        choice: tuple[str, str] | None = None
        current: Any = settings
        known: list[str] = []
        for part in path:
            chosen = [kind for kind in get_args(current) if getattr(kind, "__name__", None) == part]
            if chosen:
                choice, current = (".".join(parts), str(part)), chosen[0]
                continue
            fields = getattr(current, "model_fields", {})
            known = sorted(fields)
            parts.append(str(part))
            current = fields[part].annotation if part in fields else None
        return _Place(".".join(parts), known, choice)
