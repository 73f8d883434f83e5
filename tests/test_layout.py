"""Source layout: small folders, short files, a test for every module, and docs that name existing modules."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "clom", ROOT / "tests"
MAX_MODULES = 14
MAX_LINES = 350
ONE_FILE_EACH = ("cli", "methods")
"""Folders with one file per command and per method."""
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if (path.parent / "__init__.py").is_file()]


def test_folders_are_small() -> None:
    sizes: dict[str, int] = {}
    for path in MODULES:
        folder = path.parent.relative_to(SOURCE).as_posix()
        sizes[folder] = sizes.get(folder, 0) + (path.name != "__init__.py")
    assert sizes["data"] > 5
    too_large = {name: size for name, size in sizes.items() if size > MAX_MODULES and name not in ONE_FILE_EACH}
    assert too_large == {}


def test_files_are_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path.relative_to(SOURCE).as_posix(): count for path, count in lines.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_docs_name_files_and_modules_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    names = re.findall(r"\bclom((?:\.[a-z_]+)+)\.\w+`", text)
    assert [name for name in files if not ((SOURCE / name).is_file() or (ROOT / name).is_file())] == []
    places = [SOURCE.joinpath(*name.split(".")[1:]) for name in names]
    assert [place for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []


# --- a test for every module -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_every_module_has_a_test(module: Path) -> None:
    """`a/b.py` is tested by `tests/a/test_b.py`, or by the file that the last line of its docstring names."""
    if _only_names_others(module):
        return
    test = _mirrored(module)
    if not test.is_file():
        words = (ast.get_docstring(_parsed(module)) or "").splitlines()
        named = re.fullmatch(r"Tested by (tests/\S+\.py)\.", words[-1] if words else "")
        assert named, f"write {test.relative_to(ROOT)}, or end the docstring with 'Tested by tests/....py.'"
        test = ROOT / named[1]
        assert test.is_file(), f"there is no {named[1]}"
    assert _uses(test, module), f"{test.relative_to(ROOT)} does not use this module"


def test_a_test_uses_what_it_imports_and_what_that_imports_within_its_package() -> None:
    test = TESTS / "serve" / "images" / "test_decoder_pool.py"
    assert _uses(test, SOURCE / "serve" / "images" / "decoder_pool.py")
    assert _uses(test, SOURCE / "serve" / "images" / "decoder.py"), "which the pool imports"
    assert _uses(test, SOURCE / "serve" / "app.py"), "which a helper among the tests imports"
    assert not _uses(test, SOURCE / "serve" / "remote_model.py")
    assert not _uses(test, SOURCE / "storage" / "fingerprint.py"), "which only other packages import"


def test_a_test_uses_what_it_calls_by_name() -> None:
    test = TESTS / "cli" / "test_photos.py"
    assert _uses(test, SOURCE / "cli" / "example_photos.py")
    assert not _uses(test, SOURCE / "cli" / "import_authors.py")


def _mirrored(module: Path) -> Path:
    folder = TESTS / module.parent.relative_to(SOURCE)
    return folder / f"test_{module.parent.name if module.stem == '__init__' else module.stem.strip('_')}.py"


def _only_names_others(module: Path) -> bool:
    kinds = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return module.name == "__init__.py" and all(isinstance(node, kinds) for node in _parsed(module).body)


def _uses(test: Path, module: Path) -> bool:
    """Whether it imports the module, or something of its package that imports it, or runs it as a command by name."""
    name = _dotted(module)
    found = set().union(*(_imported(path) for path in _with_helpers(test)))
    package = ".".join(name.split(".")[:2])
    near = [imported for imported in found if f"{imported}.".startswith(f"{package}.") and imported in _PLACES]
    if name in found or any(name in _imported(_PLACES[imported]) for imported in near):
        return True
    siblings = name.rpartition(".")[0]
    return any(imported.startswith(siblings) for imported in found) and module.stem.replace("_", "-") in _texts(test)


def _dotted(module: Path) -> str:
    return ".".join(("clom", *module.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


_PLACES = {_dotted(module): module for module in MODULES}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> frozenset[str]:
    """All modules and names that a file imports, at any level."""
    names = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _with_helpers(test: Path) -> set[Path]:
    """A test and the test helpers that it imports, directly or indirectly."""
    found, todo = set[Path](), [test]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            places = (TESTS.joinpath(*name.split(".")).with_suffix(".py") for name in _imported(path))
            todo += [place for place in places if place.is_file()]
    return found


@cache
def _texts(path: Path) -> frozenset[str]:
    nodes = (node for node in ast.walk(_parsed(path)) if isinstance(node, ast.Constant))
    return frozenset(node.value for node in nodes if isinstance(node.value, str))
