"""The shape of the source: small folders, short files, and documentation that names files which exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clom"
MOST_MODULES = 14
MOST_LINES = 350
ONE_FILE_EACH = ("cli", "methods")
"""Folders with a file per command and per system."""


def modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]


def test_folders_are_small() -> None:
    sizes = {
        folder.relative_to(SOURCE).as_posix(): len(modules(folder))
        for folder in (SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir()))
    }
    assert sizes["data"] > 5
    too_large = {name: size for name, size in sizes.items() if size > MOST_MODULES and name not in ONE_FILE_EACH}
    assert too_large == {}


def test_files_are_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path.relative_to(SOURCE).as_posix(): count for path, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_pages_name_files_and_modules_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    names = re.findall(r"\bclom((?:\.[a-z_]+)+)\.\w+`", text)
    assert [name for name in files if not ((SOURCE / name).is_file() or (ROOT / name).is_file())] == []
    places = [SOURCE.joinpath(*name.split(".")[1:]) for name in names]
    assert [place for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []
