"""Names that lead to code: built in, registered by a program, brought by an installed package, or named on the spot.

There is one `Registry` for each kind of thing a person may bring (methods, networks, data sets, scores, predictors):

| way in | example |
|---|---|
| decorator | `@clom.register_method("mine")` |
| a file, a module | `--method my_file.py:Mine`, `--method package.module:Mine`, `--plugin my_file.py` |
| an installed package | an entry point of the group `clom.methods` |

Code is imported when it is first used. Nothing is ever imported because a file that is being read says so: only what is
installed, or what the caller names.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from clom.errors import UserError, shorten, unknown

T = TypeVar("T")

BUILT_IN = "built in"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One name: how to get at what it stands for, and where that comes from."""

    name: str
    load: Callable[[], T]
    origin: str = BUILT_IN
    """`built in`, `package NAME VERSION`, `file PATH`, `module NAME`."""


class Registry(Generic[T]):
    """The names of one kind of thing. `check` raises a `UserError` for what is not of this kind."""

    def __init__(
        self, kind: str, group: str, built_in: Mapping[str, str], check: Callable[[Any], None] = lambda thing: None
    ) -> None:
        """`group` is that of the entry points; `built_in` maps names to `module:attribute`."""
        self.kind, self.group = kind, group
        self._check = check
        self._entries = {name: Entry(name, self._importer(place)) for name, place in built_in.items()}
        self._packages: dict[str, Entry[T]] | None = None

    def _importer(self, place: str) -> Callable[[], T]:
        module, _, attribute = place.partition(":")
        return lambda: getattr(importlib.import_module(module), attribute)

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator: from now on `name` stands for the decorated class or function."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f"'{shorten(name)}' cannot name a {self.kind}: use lower-case letters, digits, dots, dashes and "
                "underscores."
            )

        def decorate(thing: T) -> T:
            self._check(thing)
            known = self._entries.get(name)
            if known is not None and not _same_place(known.load(), thing):
                raise UserError(f"There is a {self.kind} '{name}' already ({known.origin}). Choose another name.")
            self._entries[name] = known or Entry(name, lambda: thing, _origin_of(thing))
            return thing

        return decorate

    def names(self) -> list[str]:
        """Everything that can be named: built in first, then registered, then from installed packages."""
        return list(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def entry(self, name: str) -> Entry[T]:
        found = self._all()
        if name not in found:
            raise unknown(self.kind, name, found)
        return found[name]

    def get(self, name: str) -> T:
        """What the name stands for."""
        entry = self.entry(name)
        try:
            thing = entry.load()
        except UserError:
            raise
        except Exception as problem:
            if entry.origin == BUILT_IN:
                raise
            raise UserError(
                f"The {self.kind} '{name}' ({entry.origin}) cannot be loaded: {_why(problem)}."
            ) from problem
        self._check(thing)
        return thing

    def named(self, reference: str) -> str:
        """The name behind `reference`: a name, `path/to/file.py:Name` or `package.module:Name`, whose code is loaded.

        What is named this way is registered under its own `name`, or else under the reference's last part.
        """
        if ":" not in reference:
            self.entry(reference)  # refuses what is unknown, with a suggestion
            return reference
        place, _, attribute = reference.rpartition(":")
        module = load_code(place)
        try:
            thing = getattr(module, attribute)
        except AttributeError:
            raise unknown(f"{self.kind} in {place} called", attribute, _public(module)) from None
        self._check(thing)
        for name, entry in self._entries.items():
            if entry.origin != BUILT_IN and entry.load() is thing:
                return name
        name = own_name(thing) or attribute.lower().replace("_", "-")
        self.register(name)(thing)
        return name

    def _all(self) -> dict[str, Entry[T]]:
        if self._packages is None:
            self._packages = {
                point.name: Entry(point.name, point.load, _package_of(point))
                for point in entry_points(group=self.group)
            }
        return {**self._packages, **self._entries} if self._packages else self._entries


def load_code(place: str) -> ModuleType:
    """The module that a person named: a Python file by its path, or an importable module."""
    return _load_file(Path(place)) if place.endswith(".py") else _load_module(place)


def _load_file(path: Path) -> ModuleType:
    place = path.expanduser().resolve()
    if not place.is_file():
        raise UserError(f"There is no Python file {path}.")
    name = f"clom_plugin_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it is executed, as the import system does: dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, UserError) or not isinstance(problem, Exception):
            raise
        raise UserError(f"{path} cannot be loaded: {_why(problem, place)}.") from problem
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except Exception as problem:
        raise UserError(
            f"The module '{shorten(name)}' cannot be imported: {_why(problem)}. Name an installed module, or a file "
            "by its path, ending in .py."
        ) from problem


def own_name(thing: object) -> str | None:
    """The `name` that a class gives itself."""
    name = getattr(thing, "name", None)
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _same_place(one: object, other: object) -> bool:
    """Whether two objects are one definition: a file may be loaded, or a module reloaded, more than once."""
    places = [(getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)) for thing in (one, other)]
    return one is other or (places[0] == places[1] and None not in places[0])


def _origin_of(thing: object) -> str:
    module = getattr(thing, "__module__", "?")
    if not module.startswith("clom_plugin_"):
        return f"module {module}"
    return f"file {inspect.getfile(sys.modules[module])}"


def _package_of(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"


def _public(module: ModuleType) -> list[str]:
    return [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]


def _why(problem: Exception, file: Path | None = None) -> str:
    """One line, with the line of the user's own file where that is known."""
    text = f"{type(problem).__name__}: {shorten(' '.join(str(problem).split()), 300)}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if file and frame.filename == str(file)
    ]
    return f"{text} (line {lines[-1]})" if lines else text.rstrip(".")
