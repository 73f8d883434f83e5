"""Data sets by name: published ones, and those registered by a program, a package or a file.

A published set is read from a local folder, or else downloaded, checked against its md5 and unpacked. Any other set is
a function that returns a `DataSet`.
"""

from __future__ import annotations

import inspect
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from clom.errors import DataError, UserError, shorten
from clom.plugins import Registry

if TYPE_CHECKING:  # names are available without importing torch
    from clom.data.images import DataSet, Outline
    from clom.data.published_sets import PublishedSet

Maker: TypeAlias = "Callable[..., DataSet]"
"""A function that takes the user's folder of data sets (`Path | None`), or no argument."""


def _is_published(thing: object) -> TypeGuard[PublishedSet]:
    from clom.data.published_sets import PublishedSet

    return isinstance(thing, PublishedSet)


def _check(thing: Any) -> None:
    if _is_published(thing):
        return
    if not callable(thing) or inspect.isclass(thing):
        raise UserError(f"A data set is a function that returns a clom.DataSet, not {shorten(repr(thing))}.")
    if _required_arguments(thing) > 1:
        raise UserError(
            f"The function {getattr(thing, '__name__', thing)} of a data set must take one argument, the folder of "
            "data sets, or none."
        )


SETS: Registry[PublishedSet | Maker] = Registry(
    "data set",
    "clom.datasets",
    {
        "digits": ("clom.data.formats:read_digits", "scikit-learn's handwritten digits, 8 x 8, which need no download"),
        "mnist": ("clom.data.published_sets:MNIST", "handwritten digits, 28 x 28"),
        "fashion-mnist": ("clom.data.published_sets:FASHION_MNIST", "pieces of clothing, 28 x 28"),
        "kmnist": ("clom.data.published_sets:KMNIST", "cursive Japanese characters, 28 x 28"),
        "notmnist": ("clom.data.published_sets:NOTMNIST", "the letters A to J in many fonts, 28 x 28"),
        "cifar10": ("clom.data.published_sets:CIFAR10", "small photos of 10 classes, 32 x 32"),
        "cifar100": ("clom.data.published_sets:CIFAR100", "small photos of 100 classes, 32 x 32"),
        "tiny-imagenet": (
            "clom.data.published_sets:TINY_IMAGENET",
            "photos of 200 classes of ImageNet, shrunk to 32 x 32",
        ),
        "svhn": ("clom.data.published_sets:SVHN", "photos of house numbers, 32 x 32"),
    },
    _check,
)


# --- public functions -----------------------------------------------------------------------------------------------


def register_dataset(name: str) -> Callable[[Maker], Maker]:
    """A decorator that makes the result of a function available as `data: {set: NAME}` in experiments.

    The function takes the user's folder of data sets (`Path | None`), or no argument, and returns a `DataSet`.
    """

    def decorate(maker: Maker) -> Maker:
        SETS.register(name)(maker)
        return maker

    return decorate


def names() -> list[str]:
    """The names of all data sets."""
    return SETS.names()


def load(name: str, folder: Path | None = None, download: bool = True) -> DataSet:
    """The data set `name`; a published set is read from the first folder that has it, or else downloaded to the
    cache."""
    found = SETS.get(name)
    if not _is_published(found):
        return _made(name, found, folder)  # type: ignore[arg-type]
    for place in search_path(folder):
        if not found.missing(place):
            return _read(found, place / found.folder)
    if not download or not found.downloads:
        raise _absent(name, found, folder)
    return _read(found, _fetch(name, found, folder))


def _read(published: PublishedSet, folder: Path) -> DataSet:
    """The set in a folder; an error if its files are sound, but do not belong together."""
    try:
        return published.read(folder)
    except ValueError as problem:
        raise DataError(f"The files in {folder} do not belong together: {problem}.") from problem


def available(name: str, folder: Path | None = None) -> bool:
    """Whether the files of a published set exist locally; True for any other set."""
    found = SETS.get(name)
    return not _is_published(found) or any(not found.missing(place) for place in search_path(folder))


def outline_of(name: str) -> Outline | None:
    """What is known about a set's images without reading them."""
    from clom.data.images import Outline

    found = SETS.get(name)
    return found.outline if _is_published(found) else {"digits": Outline(8, 1442, 10)}.get(name)


def search_path(folder: Path | None = None) -> list[Path]:
    """The folders searched, in order: the given one, the one in `CLOM_DATA`, the user's cache."""
    return list(dict.fromkeys([*given_folders(folder), cache_folder()]))


def given_folders(folder: Path | None) -> list[Path]:
    """The user's folders of data sets: the given one, and the one in `CLOM_DATA`."""
    return [Path(place).expanduser() for place in (folder, os.environ.get("CLOM_DATA")) if place]


def cache_folder() -> Path:
    """The folder for downloads."""
    import pooch  # takes a fifth of a second

    return Path(pooch.os_cache("clom"))


def _made(name: str, maker: Maker, folder: Path | None) -> DataSet:
    """The result of a registered function, renamed to the registered name."""
    from clom.data.images import DataSet

    subject = f"The data set '{name}' ({SETS.entry(name).origin})"
    given = next(iter(given_folders(folder)), None)
    try:
        found = maker(given) if _takes_folder(maker) else maker()
    except UserError:
        raise
    except Exception as problem:
        why = shorten(" ".join(str(problem).split()), 300)
        raise UserError(f"{subject} could not be created: {type(problem).__name__}: {why}") from problem
    if not isinstance(found, DataSet):
        raise UserError(f"{subject} must be a clom.DataSet, but its function returned {shorten(repr(found))}.")
    return replace(found, name=name)


def _takes_folder(maker: Maker) -> bool:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return any(parameter.kind not in kinds for parameter in inspect.signature(maker).parameters.values())


def _required_arguments(maker: Maker) -> int:
    parameters = inspect.signature(maker).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return sum(parameter.default is parameter.empty and parameter.kind not in variable for parameter in parameters)


def _absent(name: str, entry: PublishedSet, folder: Path | None, why: str = "") -> DataError:
    """The error that names the folders searched and the files to put there."""
    places = search_path(folder)
    searched = ", ".join(
        f"{place} (incomplete: no {', '.join(entry.missing(place))})" if (place / entry.folder).is_dir() else str(place)
        for place in places
    )
    files = ", ".join(entry.files)
    return DataError(f"The data set '{name}' is not in {searched}{why}: put {files} into {places[0] / entry.folder}.")


# --- downloads ------------------------------------------------------------------------------------------------------


def _fetch(name: str, entry: PublishedSet, folder: Path | None) -> Path:
    """Download to the cache and return the set's folder there."""
    import pooch

    cache = cache_folder()
    for source in entry.downloads:
        if source.is_archive and (cache / entry.folder).exists():
            raise DataError(f"{cache / entry.folder} is incomplete: delete it, so that it can be downloaded again.")
        target = cache if source.is_archive else cache / entry.folder
        try:
            file = pooch.retrieve(source.url, f"md5:{source.md5}", source.file, target, progressbar=True)
            if source.is_archive:
                _install(Path(file), cache, entry.folder)
        except (OSError, ValueError) as error:
            why = f" and could not be downloaded from {source.url} ({_reason(error)})"
            raise _absent(name, entry, folder, why) from error
    return cache / entry.folder


def _reason(error: Exception) -> str:
    """A short reason: of the long messages of network libraries, only the exception's type is shown."""
    text = " ".join(str(error).split())
    if "hash" in text and isinstance(error, ValueError):
        return "the downloaded file does not have the published md5"
    return text if 0 < len(text) <= 120 else type(error).__name__


def _install(archive: Path, cache: Path, folder: str) -> None:
    """Unpack to a temporary folder and move it into place, so that an interrupted unpacking never looks complete."""
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        unpack(archive, Path(temporary))
        unpacked = Path(temporary) / folder
        if not unpacked.is_dir():
            raise DataError(f"{archive}: expected a folder '{folder}' inside, found none.")
        shutil.move(unpacked, cache / folder)
    archive.unlink()


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar.gz or zip file; rejects archives with paths outside `target`."""
    try:
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, target)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
    except DataError:
        raise
    except Exception as error:  # damaged archives can raise anything
        why = str(error)[:300] or type(error).__name__
        raise DataError(f"{archive}: the archive is damaged: {why}.") from error


def _unpack_zip(archive: Path, target: Path) -> None:
    root = target.resolve()
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            if not (root / name).resolve().is_relative_to(root):
                raise DataError(f"{archive}: the path '{name}' points outside the archive.")
        packed.extractall(root)
