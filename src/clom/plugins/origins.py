"""Where plug-ins come from, as recorded in model files and runs, and the error if one is missing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from clom.errors import UserError, shorten
from clom.plugins.registry import BUILT_IN, Registry

_ORIGIN = re.compile(r"(package|file|module) (.{1,200})")

Used = Mapping[Registry[Any], object]
"""The name that a file uses from each registry."""


def origins(used: Used, versions: bool = True) -> dict[str, str]:
    """Kind -> origin of everything used that is not built in, with or without the versions of packages."""
    found = {registry.kind: registry.entry(str(name)).origin for registry, name in used.items() if name in registry}
    brought = {kind: origin for kind, origin in found.items() if origin != BUILT_IN}
    return brought if versions else {kind: _without_version(origin) for kind, origin in brought.items()}


def _without_version(origin: str) -> str:
    return origin.rpartition(" ")[0] if origin.startswith("package ") else origin


def require(used: Used, noted: object, needed_by: str) -> None:
    """Raise if a file uses an unknown name; `noted` are the `origins` recorded in the file, if any."""
    for registry, name in used.items():
        if isinstance(noted, Mapping) and registry.kind in noted and name not in registry:
            raise _missing(registry.kind, str(name), str(noted[registry.kind]), needed_by)


def _missing(kind: str, name: str, origin: str, needed_by: str) -> UserError:
    what = f"{needed_by} needs the {kind} '{shorten(name)}'"
    match = _ORIGIN.fullmatch(origin) if origin.isprintable() else None  # untrusted
    source, where = match.groups() if match else ("", "")
    if source == "package":
        return UserError(f"{what} from the package {where}, {_instead(where)}: install that one if you trust it.")
    if source == "" or where == "__main__":
        return UserError(f"{what}, which is not built in: run the code that registers it first.")
    return UserError(
        f"{what} from {where}: repeat the command with --plugin {shlex.quote(where)}, or in Python call "
        f"clom.load_plugin({where!r}) first."
    )


def _instead(package: str) -> str:
    name = package.partition(" ")[0]
    try:
        return f"but {name} {version(name)} is installed here, which does not provide it"
    except (PackageNotFoundError, ValueError):
        return "which is not installed here"
