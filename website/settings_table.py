"""A method's settings as a table: what each means, its default, and its value in every experiment."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping
from typing import Any, get_args

from clom.experiments.catalogue import experiment_names
from clom.experiments.config import resolve
from clom.methods.registry import method_class
from clom.settings import Settings, flatten

BUDGETS = ("cpu", "paper")
_ENOUGH_FOR_OTHERS = 3


def settings_table(method: str) -> str:
    """One line per setting, in Markdown; empty if the method has no settings."""
    defaults = flatten(method_class(method).settings_type().model_dump(mode="json"))
    meanings = meanings_of(method_class(method).settings_type)
    values = {
        budget: {name: flatten(resolve(name, method, budget).settings) for name in experiment_names()}
        for budget in BUDGETS
    }
    names = list(defaults)
    for of_budget in values.values():
        for settings in of_budget.values():
            names += [name for name in settings if name not in names]
    if not names:
        return ""
    lines = ["| setting | default | budget `cpu` | budget `paper` | meaning |", "| --- | --- | --- | --- | --- |"]
    for name in _by_group(names):
        default = _code(defaults[name]) if name in defaults else "–"
        cells = [_by_value({of: settings.get(name) for of, settings in values[budget].items()}) for budget in BUDGETS]
        lines.append(f"| `{name}` | {default} | {' | '.join(cells)} | {meanings.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _by_group(names: list[str]) -> list[str]:
    """Settings of the same group next to each other, groups in the order of their first setting."""
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return sorted(names, key=lambda name: groups.index(name.rpartition(".")[0]))


def _by_value(values: Mapping[str, Any]) -> str:
    """One value if it is the same in all experiments, otherwise a line for each value, with its experiments."""
    experiments: dict[str, list[str]] = {}
    for name, value in values.items():
        experiments.setdefault(_code(value), []).append(name)
    if len(experiments) == 1:
        return next(iter(experiments))
    most = max(experiments.values(), key=len)
    lines = [
        f"{value} {'others' if names is most and len(names) >= _ENOUGH_FOR_OTHERS else ', '.join(names)}"
        for value, names in sorted(experiments.items(), key=lambda item: item[1] is most)
    ]
    return "<br>".join(lines)


def _code(value: Any) -> str:
    return "–" if value is None else f"`{json.dumps(value).strip(chr(34))}`"


# --- what settings mean -----------------------------------------------------------------------------------------------


def meanings_of(settings: type[Settings], prefix: str = "") -> dict[str, str]:
    """The strings below the fields of a class, by the dotted name of the setting, with those of its groups."""
    found: dict[str, str] = {}
    texts = {name: text for base in reversed(settings.__mro__) for name, text in _texts(base).items()}
    for name, field in settings.model_fields.items():
        for inner in [field.annotation, *get_args(field.annotation)]:
            if isinstance(inner, type) and issubclass(inner, Settings):
                found.update(meanings_of(inner, f"{prefix}{name}."))
        if name in texts:
            found[f"{prefix}{name}"] = " ".join(texts[name].split()).replace("|", "\\|")
    return found


def _texts(cls: type) -> dict[str, str]:
    """Field -> the string literal that follows it in the class's source."""
    if not issubclass(cls, Settings):
        return {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                texts[name] = meaning
    return texts
