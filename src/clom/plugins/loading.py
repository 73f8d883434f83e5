"""Load plug-in code: a Python file given by its path, or an importable module."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from clom.errors import UserError, shorten

FILE_MODULE = "clom_plugin_"
"""Prefix of the names of modules loaded from files."""

_loaded: dict[str, ModuleType] = {}
"""The plug-ins loaded so far, by absolute path or module name."""


def load_code(place: str) -> ModuleType:
    """Import a Python file, given by its path, or an importable module."""
    if place.endswith(".py"):
        key = str(Path(place).expanduser().resolve())
        module = _loaded.get(key) or _load_file(Path(key), place)
    else:
        key, module = place, _load_module(place)
    _loaded[key] = module
    return module


def load_plugin(place: str | Path) -> None:
    """Load a Python file or an importable module, which registers its own methods, networks and so on."""
    load_code(str(place))


def loaded() -> list[str]:
    """Paths and module names of all loaded plug-ins; another process that loads them knows the same names."""
    return list(_loaded)


def loaded_modules() -> list[ModuleType]:
    return list(_loaded.values())


def _load_file(path: Path, given: str) -> ModuleType:
    if not path.is_file():
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
        hint = f" Did you mean '{path.parent / close[0] if Path(given).is_absolute() else close[0]}'?" if close else ""
        raise UserError(f"There is no Python file {given}.{hint}")
    name = FILE_MODULE + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution, as the import system does, since dataclasses look it up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # like a script, a plug-in may import files next to it
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except BaseException as problem:
        said = why(problem)
        del sys.modules[name]
        if not isinstance(problem, Exception | SystemExit):
            raise
        raise UserError(f"{given} cannot be loaded: {said}.") from problem
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except (Exception, SystemExit) as problem:
        file = Path(f"{name.replace('.', '/')}.py")
        advice = f"Did you mean '{file}'?" if file.is_file() else "Name an installed module, or a file ending in .py."
        raise UserError(f"The module '{shorten(name)}' cannot be imported: {why(problem)}. {advice}") from problem


def why(problem: BaseException) -> str:
    """Describe an error in plug-in code in one line, with its line number in the file if known."""
    text = f"{type(problem).__name__}: {shorten(' '.join(str(problem).split()), 300)}".rstrip(".: ")
    files = {str(module.__file__) for name, module in sys.modules.items() if name.startswith(FILE_MODULE)}
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename in files]
    return f"{text} (line {frames[-1].lineno})" if frames else text


def defined_in(module: ModuleType) -> list[str]:
    """Names of the classes and functions that are defined in the module itself."""
    return [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
