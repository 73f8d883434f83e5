"""A registry maps names to classes or functions of one kind."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from clom.errors import UserError, shorten, unknown
from clom.plugins.loading import FILE_MODULE, defined_in, load_code, loaded_modules, why

T = TypeVar("T")

BUILT_IN = "built in"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A name, how to load the object it refers to, and the origin of that object."""

    name: str
    load: Callable[[], T]
    place: str
    """`module:attribute`."""
    origin: str = BUILT_IN
    """`built in`, `package NAME VERSION`, `file NAME.py` or `module NAME`."""
    description: str = ""
    """A one-line description, if known without loading the object."""


class Registry(Generic[T]):
    """The registered names of one kind."""

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, tuple[str, str]],
        check: Callable[[Any], None] = lambda thing: None,
        adopt: Callable[[str, Any], None] = lambda name, thing: None,
    ) -> None:
        """`group` is the entry-point group; `built_in` maps names to `module:attribute` and a description.

        `check` raises a `UserError` if an object is not of this kind. `adopt` is called with the name and the object
        before an object from outside this package is first used.
        """
        self.kind, self.group = kind, group
        self._check, self._adopt = check, adopt
        self._entries = {
            name: Entry(name, _importer(place), place, BUILT_IN, text) for name, (place, text) in built_in.items()
        }
        self._packages: dict[str, Entry[T]] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that registers a class or function under `name`."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f"'{shorten(name)}' cannot name a {self.kind}: use lower-case letters, digits, dots, dashes and "
                "underscores."
            )

        def decorate(thing: T) -> T:
            self._check(thing)
            known = self._all().get(name)
            if known is not None and not _same(known, _place_of(thing)):
                raise UserError(f"There is a {self.kind} '{name}' already ({known.origin}). Choose another name.")
            if known is not None and known.origin == BUILT_IN:
                return thing
            self._take(name, thing, _origin_of(thing) if known is None else known.origin)
            return thing

        return decorate

    def _take(self, name: str, thing: T, origin: str) -> None:
        """Add an entry; a newer definition replaces an older one."""
        self._adopt(name, thing)
        self._entries[name] = Entry(name, lambda: thing, _place_of(thing), origin)

    def names(self) -> list[str]:
        """All names: built in first, then those of programs and plug-ins, then those of installed packages."""
        return list(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all() or (isinstance(name, str) and self._register_from_plugins(name))

    def entry(self, name: str) -> Entry[T]:
        if name not in self:
            if ":" in name:
                raise UserError(
                    f"'{shorten(name)}' names code, which is loaded only if the command itself names it: pass "
                    f"--plugin {shorten(name.rpartition(':')[0])} and give the {self.kind} by its name alone."
                )
            raise unknown(self.kind, name, [*self._all(), *self._unregistered()])
        return self._all()[name]

    def get(self, name: str) -> T:
        """The object registered under this name."""
        entry = self.entry(name)
        try:
            thing = entry.load()
        except UserError:
            raise
        except (Exception, SystemExit) as problem:
            if entry.origin == BUILT_IN:
                raise
            raise UserError(f"The {self.kind} '{name}' ({entry.origin}) cannot be loaded: {why(problem)}.") from problem
        if name not in self._entries:  # from a package, for the first time
            self._check(thing)
            self._take(name, thing, entry.origin)
        return thing

    def description(self, name: str) -> str:
        """A one-line description; for plug-ins, the first line of the docstring."""
        known = self.entry(name).description
        return known or (self.get(name).__doc__ or "").strip().partition("\n")[0] or "no description"

    def named(self, reference: str) -> str:
        """Resolve a name, `path/to/file.py:Name` or `package.module:Name` to a registered name, loading the code.

        Call it only for references given by the user, on the command line or in an experiment's file, never for those
        in a model file or run folder. An unregistered object is registered under its own `name`, or else under the
        last part of the reference in lower case.
        """
        if reference.endswith(".py"):
            module = load_code(reference)
            found = ", ".join(f"{reference}:{name}" for name, _ in self._candidates(module)) or "it holds none"
            raise UserError(f"Name the {self.kind} in {reference} as well: {found}.")
        if ":" not in reference:
            self.entry(reference)  # raises for unknown names
            return reference
        place, _, attribute = reference.rpartition(":")
        module = load_code(place)
        try:
            thing = getattr(module, attribute)
        except AttributeError:
            raise unknown(f"{self.kind} in {place} called", attribute, defined_in(module)) from None
        self._check(thing)
        for name, entry in self._all().items():
            if entry.place == _place_of(thing):
                return name
        name = _usual_name(attribute, thing)
        self.register(name)(thing)
        return name

    def _register_from_plugins(self, name: str) -> bool:
        """Register an object under this name if a plug-in defines it without registering it; whether there is one."""
        found = self._unregistered()
        if name in found:
            self.register(name)(found[name])
        return name in found

    def _unregistered(self) -> dict[str, T]:
        """Objects of this kind that plug-ins define without registering them, by their default names."""
        known = {entry.place for entry in self._all().values()}
        things = [candidate for module in loaded_modules() for candidate in self._candidates(module)]
        return {_usual_name(attribute, thing): thing for attribute, thing in things if _place_of(thing) not in known}

    def _candidates(self, module: ModuleType) -> Iterator[tuple[str, T]]:
        """The objects of this kind that a module defines."""
        for attribute in defined_in(module):
            thing = getattr(module, attribute)
            try:
                self._check(thing)
            except UserError:
                continue
            yield attribute, thing

    def _all(self) -> dict[str, Entry[T]]:
        if self._packages is None:
            self._packages = self._read_packages()
        return {**self._entries, **{name: e for name, e in self._packages.items() if name not in self._entries}}

    def _read_packages(self) -> dict[str, Entry[T]]:
        found: dict[str, Entry[T]] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, _package_of(point))):
            other = self._entries.get(point.name) or found.get(point.name)
            if other is not None and other.place != point.value:
                problem = f"there is one already ({other.origin})"
            elif not _NAME.fullmatch(point.name):
                problem = "the name must be of lower-case letters, digits, dots, dashes and underscores"
            else:
                found[point.name] = Entry(point.name, point.load, point.value, _package_of(point))
                continue
            warnings.warn(
                f"The {self.kind} '{shorten(point.name)}' of the {_package_of(point)} is ignored: {problem}.",
                stacklevel=2,
            )
        return found


# --- places -----------------------------------------------------------------------------------------------------------


def _importer(place: str) -> Callable[[], Any]:
    module, _, attribute = place.partition(":")
    return lambda: getattr(importlib.import_module(module), attribute)


def _place_of(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}:{getattr(thing, '__qualname__', repr(thing))}"


def _same(known: Entry[Any], place: str) -> bool:
    """Whether the same code registers a name again: because it was reloaded, or through its entry point."""
    tops = [re.split("[.:]", at)[0] for at in (known.place, place)]
    return known.place == place or (known.origin.startswith("package ") and tops[0] == tops[1])


def _usual_name(attribute: str, thing: object) -> str:
    """The class's own `name` attribute (not an inherited one), or else its Python name in lower case."""
    own = vars(thing).get("name") if isinstance(thing, type) else None
    return own if isinstance(own, str) and _NAME.fullmatch(own) else attribute.lower().lstrip("_").replace("_", "-")


def _origin_of(thing: object) -> str:
    """For files the name without the folder, which would reveal paths of the machine that saved a model."""
    module = getattr(thing, "__module__", "?")
    if not module.startswith(FILE_MODULE):
        return f"module {module}"
    return f"file {Path(str(sys.modules[module].__file__)).name}"


def _package_of(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"
