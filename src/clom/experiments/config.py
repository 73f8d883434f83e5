"""Run configurations: an experiment's YAML file, budget, method and overrides resolved into one `RunConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from clom import machine
from clom.data.catalog import SETS
from clom.data.sources import DataSettings
from clom.errors import UserError, shorten, unknown
from clom.experiments.catalogue import (
    BUDGETS,
    Budget,
    Experiment,
    name_of,
    read_experiment,
    read_searched_recipe,
    size_of,
)
from clom.experiments.defaults import (
    SearchedRecipe,
    network_for,
    on_top,
    recipe_for,
    recipe_settings,
    searched_recipe,
)
from clom.experiments.plain_yaml import parse_yaml, read_yaml
from clom.methods.families.base import Method
from clom.methods.registry import METHODS, method_class, method_info
from clom.nets import NetSettings
from clom.nets.networks.kinds import AnyNetSettings, network_kind
from clom.nets.networks.registry import NETS
from clom.nets.size_limit import SizeLimit
from clom.plugins import Registry, origins, require
from clom.settings import Settings, explain, flatten, merged, set_dotted

S = TypeVar("S", bound=Settings)

_BYTES_PER_WEIGHT = 16  # the weight, its gradient and optimiser state


class RunConfig(Settings):
    """Everything that determines a run's result."""

    experiment: str
    method: str
    budget: Budget
    seed: int
    data: DataSettings
    net: AnyNetSettings
    settings: dict[str, Any]
    """The complete settings of the method, as resolved by its `settings_type`."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Differences from the recipe by dotted name; the fields above already include them."""
    plugins: dict[str, str] = Field(default_factory=dict)
    """Origins of components that are not built in, by kind. Informational: nothing is loaded because of it."""
    common_net: AnyNetSettings | None = None
    """The experiment's own network, if the run uses another one: passes are counted in passes through it."""
    title: str | None = None
    """Set, like `external`, only for experiments that are not built in."""
    external: tuple[str, ...] = ()
    search: str | None = None
    """The search that found the recipe, if it was not written by hand."""

    @model_serializer(mode="wrap")
    def _without_empty(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the optional fields that only some runs have."""
        values: dict[str, Any] = dump(self)
        optional = ("plugins", "common_net", "title", "external", "search")
        return {name: value for name, value in values.items() if value or name not in optional}

    def make_method(self, image_shape: Sequence[int], n_classes: int | None = None) -> Method:
        """Create the untrained method; raises UserError if its network exceeds this machine's memory.

        A method that uses the number of classes of all tasks has a setting `n_classes`; if that is None, it is filled
        in, by default with what the data settings tell.
        """
        method_type = method_class(self.method)
        settings = method_type.settings_type.model_validate(self.settings)
        if getattr(settings, "n_classes", 0) is None:
            settings = settings.model_copy(update={"n_classes": n_classes or self.data.n_classes()})
        numbers = (machine.memory_bytes() or 2**36) // _BYTES_PER_WEIGHT
        with SizeLimit(numbers, 10**6, f"The network of these settings is too large for this machine: {self.net!r}."):
            return method_type(self.net, settings, image_shape, self.seed)

    @property
    def unit_net(self) -> NetSettings:
        """The network that a pass is a pass through."""
        return self.common_net or self.net

    def image_shape(self, folder: Path | None = None) -> tuple[int, int, int]:
        """Channels, height and width. Images are read from `folder` only if the experiment declares no size."""
        size = size_of(self.experiment)
        if size is not None and self.data.pixels is None:
            return size.image_shape
        channels, height, width = self.data.load(folder).train.pixels.shape[1:]
        return channels, height, width

    @property
    def run_name(self) -> str:
        return f"{self.experiment}-{self.method}-{self.budget}-s{self.seed}"


def resolve(
    experiment: str,
    method: str = "clom",
    budget: str = "cpu",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    by_hand: bool = False,
) -> RunConfig:
    """Merge, in increasing priority: the experiment, the budget, the method's variant, `recipe`, `overrides`.

    `experiment` is a name or the path of a YAML file. Overrides have dotted names: those that
    start with `data.` or `net.` change the data or the network, all others the method's settings. A recipe that was
    found by a search replaces the hand-written one as a whole; `by_hand` ignores those built in.
    """
    found = read_experiment(experiment)
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    amount: Budget = budget
    method_type = method_class(method)
    for name in found.recipe:
        METHODS.entry(name)  # rejects unknown names with a suggestion
    given = [*method_info(method).preset, *(overrides or {}).items()]
    source = _checked(DataSettings, _with_overrides("data", _file_data(found, amount), given), "data.").resolved()
    if source.set is not None:
        SETS.entry(source.set)  # rejects unknown names with a suggestion
    own = searched_recipe(recipe or {}, found, amount)
    searched = own or (None if by_hand else _adopted(method, method_type.name, found, amount))
    if searched is not None:
        settings = searched.settings
    else:
        settings = recipe_for(method_type.name, method, found, amount, None if found.built_in else source.n_train())
    if own is None:
        settings = on_top(settings, recipe_settings(recipe or {}, found, amount))
    # The same network for all methods, except those published with a specific one.
    common = found.at(amount).net or found.net or network_for(_pixels(source, found), amount)
    net = settings.pop("net", None) or common
    if not isinstance(net, Mapping):
        raise UserError(f"A recipe's net is a group of settings, for example {{kind: resnet18}}, not {net!r:.100}.")
    if (overrides or {}).get("net.kind", net.get("kind")) != net.get("kind"):
        net = {}  # another network has other settings
    net = _with_overrides("net", merged(net, {}), given)
    for name, value in given:
        if name.partition(".")[0] not in ("data", "net"):
            set_dotted(settings, name, value)
    used, unit = (_checked(network_kind(str(one.get("kind"))).settings_type, one, "net.") for one in (net, common))
    config = RunConfig(
        experiment=found.name,
        method=method,
        budget=amount,
        seed=seed,
        data=source,
        net=used,
        settings=_checked(method_type.settings_type, settings).model_dump(mode="json"),
        common_net=None if unit == used else unit,
        title=None if found.built_in else found.title,
        external=() if found.built_in else found.external,
        search=None if searched is None else searched.search,
    )
    config = config.model_copy(update={"plugins": origins(_used(config.model_dump()), versions=False)})
    if not overrides and not recipe:
        return config
    return config.model_copy(update={"overrides": _changes(resolve(experiment, method, budget, seed), config)})


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The same run with other settings of the method, all of them, which are checked."""
    checked = _checked(method_class(config.method).settings_type, settings)
    return config.model_copy(update={"settings": checked.model_dump(mode="json")})


def _adopted(variant: str, method: str, experiment: Experiment, budget: Budget) -> SearchedRecipe | None:
    """The built-in recipe that a search found for a variant of a method or, if there is none, for the method."""
    for name in dict.fromkeys((variant, method)):
        part = read_searched_recipe(name).get(experiment.name, {})
        if experiment.built_in and budget in part:
            return searched_recipe({experiment.name: part}, experiment, budget)
    return None


def require_plugins(content: Mapping[str, Any], needed_by: str) -> None:
    """Raise UserError if a run's `config.yaml` needs plug-ins that are not loaded."""
    require(_used(content), content.get("plugins"), needed_by)


def _used(content: Mapping[str, Any]) -> dict[Registry[Any], object]:
    """The registered components named by a run's settings."""
    net, data = (part if isinstance(part := content.get(name), Mapping) else {} for name in ("net", "data"))
    return {METHODS: content.get("method"), NETS: net.get("kind"), SETS: data.get("set")}


def _with_overrides(group: str, values: dict[str, Any], given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in given:
        first, _, rest = name.partition(".")
        if first == group:
            set_dotted(values, rest, value)
    return values


def _file_data(experiment: Experiment, budget: Budget) -> dict[str, Any]:
    """The data settings of the experiment's file; a data set given as code is loaded and replaced by its name."""
    data = merged(experiment.data, experiment.at(budget).data)
    if isinstance(data.get("set"), str):
        data["set"] = SETS.named(data["set"])
    return data


def _pixels(source: DataSettings, experiment: Experiment) -> int | None:
    """The side length of the images, or None if it is unknown before they are read."""
    if source.pixels is not None or source.set is None:
        return source.pixels
    known = experiment.size or source.outline()
    return known.pixels if known else None


def _changes(usual: RunConfig, config: RunConfig) -> dict[str, Any]:
    """Settings that differ from the recipe, whether set by file or option."""
    before, after = (
        flatten({**dump["settings"], "data": dump["data"], "net": dump["net"]})
        for dump in (usual.model_dump(mode="json"), config.model_dump(mode="json"))
    )
    return {name: value for name, value in sorted(after.items()) if name not in before or before[name] != value}


def _checked(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    try:
        return kind.model_validate(values)
    except ValidationError as problem:
        raise explain(problem, kind, prefix) from None


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` strings; values are YAML, so `0.5`, `true` and `[1, 2]` have their usual types."""
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
    return with_code_loaded(overrides)


def with_code_loaded(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Load data sets and networks given as code, such as `my_file.py:MyNet`, and replace them by their names."""
    registries: dict[str, Registry[Any]] = {"data.set": SETS, "net.kind": NETS}
    named = {name: overrides[name] for name in registries if isinstance(overrides.get(name), str)}
    return {**overrides, **{name: registries[name].named(reference) for name, reference in named.items()}}


def read_settings_file(path: Path, experiment: str | None = None) -> dict[str, Any]:
    """Read a YAML settings file or a run's `config.yaml`, with its data and network if the experiment is the same."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must contain names and values, for example 'learning: {{plan: {{epochs: 10}}}}'.")
    settings = content.get("settings")
    if not isinstance(settings, dict):
        return content
    same = experiment is not None and content.get("experiment") == name_of(experiment)
    return settings | {group: content[group] for group in ("data", "net") if same and group in content}
