"""Which files somebody means who names files, folders and patterns."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from clom.data.folders import Skipped, is_user_file


def find_files(places: Iterable[str]) -> tuple[list[Path], list[Skipped]]:
    """The files in the order of `places`, each once, and what led nowhere.

    A folder stands for all files in it and below, a pattern (*, ?, **) for all that match; hidden files are left out.
    """
    found, skipped = dict[Path, None](), list[Skipped]()
    for place in places:
        path = Path(place)
        files = _files_at(place)
        found |= dict.fromkeys(files)
        if not files:
            skipped.append(Skipped(path, _why_none(path)))
    return list(found), skipped


def _files_at(place: str) -> list[Path]:
    path = Path(place)
    if path.is_dir():
        inside = (file for file in path.rglob("*") if all(map(is_user_file, file.relative_to(path).parts)))
        return sorted(file for file in inside if not file.is_dir())
    if path.exists():
        return [path]
    if not glob.has_magic(place):
        return []
    matching = [Path(match) for match in sorted(glob.glob(place, recursive=True))]
    return [file for match in matching for file in _files_at(str(match))]


def _why_none(path: Path) -> str:
    if path.is_dir():
        return "the folder holds no files"
    return "no file has such a name" if glob.has_magic(str(path)) else "there is no such file"
