"""Expanding files, folders and glob patterns from the command line."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from clom.data.folders import OUTSIDE, Skipped, is_user_file, leads_outside


def find_files(places: Iterable[str], links: bool = True) -> tuple[list[Path], list[Skipped]]:
    """The files in the order of `places`, without duplicates, and the places where none was found.

    A folder expands to all files in it, recursively, a pattern (*, ?, **) to all matches; hidden files are ignored.
    Without `links`, links in a folder to files outside of it are skipped.
    """
    found, skipped = dict[Path, None](), list[Skipped]()
    for place in places:
        path = Path(place)
        files = _files_at(place)
        outside = [] if links else linked(files, [place])
        found |= dict.fromkeys(file for file in files if file not in outside)
        skipped += [Skipped(file, OUTSIDE) for file in outside]
        if not files:
            skipped.append(Skipped(path, _why_none(path)))
    return list(found), skipped


def linked(files: Iterable[Path], places: Iterable[str]) -> list[Path]:
    """Those files that are in one of the folders among `places` only by a link to somewhere else."""
    folders = [Path(place) for place in places if Path(place).is_dir()]
    return [file for file in files for folder in folders if file.is_relative_to(folder) and leads_outside(file, folder)]


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
        return "the folder contains no files"
    return "no file matches" if glob.has_magic(str(path)) else "there is no such file"
