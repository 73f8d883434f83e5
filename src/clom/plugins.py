"""Names that lead to code: built in, registered by a program, brought by an installed package, or named on the spot.

There is one `Registry` for each kind of thing a person may bring (methods, networks, data sets, scores, predictors):

| way in | example |
|---|---|
| decorator | `@clom.register_method("mine")` |
| a file, a module | `--method my_file.py:Mine`, `--method package.module:Mine`, `--plugin my_file.py` |
| an installed package | an entry point of the group `clom.methods` |

Code is imported when it is first used. Nothing is ever imported because a file that is being read says so: only what is
installed, or what the caller names. A file that was made with a plug-in notes where it came from (`origins`), so that
whoever reads it without the plug-in is told what is missing (`require`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from clom.errors import UserError, shorten, unknown

T = TypeVar("T")

BUILT_IN = "built in"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_ORIGIN = re.compile(r"(package|file|module) (.{1,200})")
_FILE_MODULE = "clom_plugin_"

_loaded: dict[str, ModuleType] = {}
"""The plug-ins that somebody named, by absolute path or module name."""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One name: how to get at what it stands for, and where that comes from."""

    name: str
    load: Callable[[], T]
    place: str
    """`module:attribute`."""
    origin: str = BUILT_IN
    """`built in`, `package NAME VERSION`, `file NAME.py` or `module NAME`."""


class Registry(Generic[T]):
    """The names of one kind of thing."""

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, str],
        check: Callable[[Any], None] = lambda thing: None,
        adopt: Callable[[str, Any], None] = lambda name, thing: None,
    ) -> None:
        """`group` is that of the entry points; `built_in` maps names to `module:attribute`.

        `check` raises a `UserError` for what is not of this kind. `adopt` is called with a name and what somebody
        brought under it, before it is used.
        """
        self.kind, self.group = kind, group
        self._check, self._adopt = check, adopt
        self._entries = {name: Entry(name, _importer(place), place) for name, place in built_in.items()}
        self._packages: dict[str, Entry[T]] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator: from now on `name` stands for the decorated class or function."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f"'{shorten(name)}' cannot name a {self.kind}: use lower-case letters, digits, dots, dashes and "
                "underscores."
            )

        def decorate(thing: T) -> T:
            self._check(thing)
            known, place = self._all().get(name), _place_of(thing)
            if known is not None and not _same(known, place):
                raise UserError(f"There is a {self.kind} '{name}' already ({known.origin}). Choose another name.")
            if known is not None and known.origin == BUILT_IN:
                return thing
            self._adopt(name, thing)
            origin = _origin_of(thing) if known is None else known.origin
            self._entries[name] = Entry(name, lambda: thing, place, origin)  # of two definitions the newer counts
            return thing

        return decorate

    def names(self) -> list[str]:
        """Everything that is registered: built in first, then by programs and plug-ins, then by installed packages."""
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
            raise unknown(self.kind, name, self._all())
        return self._all()[name]

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
        if name not in self._entries:  # from a package, for the first time
            self.register(name)(thing)
        return thing

    def named(self, reference: str) -> str:
        """The name behind `reference`: a name, `path/to/file.py:Name` or `package.module:Name`, whose code is loaded.

        For what a person names on the spot, never for what a file says. What is not registered yet is registered under
        its own `name`, or else under the last part of the reference in lower case.
        """
        if reference.endswith(".py"):
            module = load_code(reference)
            found = ", ".join(f"{reference}:{name}" for name, _ in self._candidates(module)) or "it holds none"
            raise UserError(f"Name the {self.kind} in {reference} as well: {found}.")
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
        for name, entry in self._all().items():
            if entry.place == _place_of(thing):
                return name
        name = _usual_name(attribute, thing)
        self.register(name)(thing)
        return name

    def _register_from_plugins(self, name: str) -> bool:
        """Whether a plug-in holds something of this kind under that name, which it did not register itself."""
        for module in _loaded.values():
            for attribute, thing in self._candidates(module):
                if _usual_name(attribute, thing) == name:
                    self.register(name)(thing)
                    return True
        return False

    def _candidates(self, module: ModuleType) -> Iterator[tuple[str, T]]:
        """The things of this kind that a module defines."""
        for attribute in _public(module):
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


# --- code that somebody named ----------------------------------------------------------------------------------------


def load_code(place: str) -> ModuleType:
    """The module that a person named: a Python file by its path, or an importable module."""
    if place.endswith(".py"):
        key = str(Path(place).expanduser().resolve())
        module = _loaded.get(key) or _load_file(Path(key), place)
    else:
        key, module = place, _load_module(place)
    _loaded[key] = module
    return module


def load_plugin(place: str | Path) -> None:
    """Load a Python file or an importable module, whose decorators register what it brings."""
    load_code(str(place))


def loaded() -> list[str]:
    """All that was loaded by its place: what another process needs in order to know the same names."""
    return list(_loaded)


def _load_file(path: Path, given: str) -> ModuleType:
    if not path.is_file():
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
        hint = f" Did you mean '{path.parent / close[0] if Path(given).is_absolute() else close[0]}'?" if close else ""
        raise UserError(f"There is no Python file {given}.{hint}")
    name = _FILE_MODULE + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it is executed, as the import system does: dataclasses look it up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # a plug-in may have more files beside it, as a script may
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, UserError) or not isinstance(problem, Exception | SystemExit):
            raise
        raise UserError(f"{given} cannot be loaded: {_why(problem, path)}.") from problem
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except (Exception, SystemExit) as problem:
        file = Path(f"{name.replace('.', '/')}.py")
        advice = f"Did you mean '{file}'?" if file.is_file() else "Name an installed module, or a file ending in .py."
        raise UserError(f"The module '{shorten(name)}' cannot be imported: {_why(problem)}. {advice}") from problem


def _why(problem: BaseException, file: Path | None = None) -> str:
    """One line, with the line of the user's own file where that is known."""
    text = f"{type(problem).__name__}: {shorten(' '.join(str(problem).split()), 300)}".rstrip(".: ")
    lines = [
        frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if file and frame.filename == str(file)
    ]
    return f"{text} (line {lines[-1]})" if lines else text


# --- what a file notes about the plug-ins it was made with -----------------------------------------------------------


Used = Mapping[Registry[Any], object]
"""The names that a file uses, by what they are names of."""


def origins(used: Used, versions: bool = True) -> dict[str, str]:
    """Where the used things that are not built in come from, by kind; on demand without the versions of packages."""
    found = {registry.kind: registry.entry(str(name)).origin for registry, name in used.items() if name in registry}
    brought = {kind: origin for kind, origin in found.items() if origin != BUILT_IN}
    return brought if versions else {kind: _without_version(origin) for kind, origin in brought.items()}


def _without_version(origin: str) -> str:
    return origin.rpartition(" ")[0] if origin.startswith("package ") else origin


def require(used: Used, noted: object, needed_by: str) -> None:
    """Refuse a file that uses what is not known here; `noted` are the `origins` that the file tells, if it does."""
    for registry, name in used.items():
        if isinstance(noted, Mapping) and registry.kind in noted and name not in registry:
            raise _missing(registry.kind, str(name), str(noted[registry.kind]), needed_by)


def _missing(kind: str, name: str, origin: str, needed_by: str) -> UserError:
    what = f"{needed_by} needs the {kind} '{shorten(name)}'"
    match = _ORIGIN.fullmatch(origin) if origin.isprintable() else None  # a file may say anything
    source, where = match.groups() if match else ("", "")
    if source == "package":
        return UserError(f"{what} of the package {where}, {_instead(where)}: install that one, if you trust it.")
    if source == "" or where == "__main__":
        return UserError(f"{what}, which is not built in: register it before, where it is defined.")
    return UserError(
        f"{what} of {where}: repeat the command with --plugin {shlex.quote(where)}, or in Python call "
        f"clom.load_plugin({where!r}) before."
    )


def _instead(package: str) -> str:
    name = package.partition(" ")[0]
    try:
        return f"but here {name} {version(name)} is installed, which does not bring it"
    except (PackageNotFoundError, ValueError):
        return "which is not installed here"


# --- places ----------------------------------------------------------------------------------------------------------


def _importer(place: str) -> Callable[[], Any]:
    module, _, attribute = place.partition(":")
    return lambda: getattr(importlib.import_module(module), attribute)


def _place_of(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}:{getattr(thing, '__qualname__', repr(thing))}"


def _same(known: Entry[Any], place: str) -> bool:
    """Whether a name is registered again by the code it belongs to: loaded once more, or through its entry point."""
    tops = [re.split("[.:]", at)[0] for at in (known.place, place)]
    return known.place == place or (known.origin.startswith("package ") and tops[0] == tops[1])


def _usual_name(attribute: str, thing: object) -> str:
    """The `name` that a class gives itself, not one that it inherits, or what it is called."""
    own = vars(thing).get("name") if isinstance(thing, type) else None
    return own if isinstance(own, str) and _NAME.fullmatch(own) else attribute.lower().lstrip("_").replace("_", "-")


def _origin_of(thing: object) -> str:
    """The name of a file without its folder: models are passed on, and nobody needs to know where it lay."""
    module = getattr(thing, "__module__", "?")
    if not module.startswith(_FILE_MODULE):
        return f"module {module}"
    return f"file {Path(str(sys.modules[module].__file__)).name}"


def _package_of(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"


def _public(module: ModuleType) -> list[str]:
    return [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
