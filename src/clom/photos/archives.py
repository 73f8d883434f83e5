"""Photos in a zip file, read without unpacking it: no name in the file is ever used as a path.

The layout is that of a folder, `class/photo`, also inside one enclosing folder. What a zip file claims to contain is
limited before anything is decompressed, and no member yields more bytes than it claims.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from clom.data.decoding import decode_with_size
from clom.data.folders import (
    Pictures,
    Skipped,
    check_amounts,
    is_user_file,
    read_classes,
    read_sized_picture,
    readable,
    to_tensor,
)
from clom.errors import DataError, UserError, shorten
from clom.files import check_regular

_DIRECTORY_BYTES = 16_000_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of the others, Python cannot limit what one read yields
_ENCRYPTED = 1
_SYSTEM_FOLDER = "__MACOSX"


@dataclass(frozen=True)
class ZipLimits:
    """Limits of one zip file, unpacked."""

    files: int = 20_000
    total_bytes: int = 4_000_000_000
    photo_bytes: int = 200_000_000


def is_zip(path: Path) -> bool:
    """Whether the path is a file whose name says zip; its content is checked when it is read."""
    return path.suffix.lower() == ".zip" and path.is_file()


class ZipPhotos:
    """The files of a zip file that may be photos. A context manager."""

    def __init__(self, path: Path, limits: ZipLimits | None = None) -> None:
        self.path, self.limits = path, limits or ZipLimits()
        check_regular(path)
        try:
            self._file = _BoundedReads(io.FileIO(path))
        except OSError as problem:
            raise DataError(f"Cannot read {path}: {problem.strerror or problem}.") from None
        try:
            self._archive = zipfile.ZipFile(self._file)
            self._members = self._listed()
        except BaseException as problem:
            self._file.close()
            if isinstance(problem, (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, OSError)):
                raise DataError(f"{path} cannot be read as a zip file: {problem}.") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._archive.close()
        self._file.close()

    @property
    def files(self) -> list[Path]:
        """Their places for display: the path of the zip file and the place in it."""
        return [self.path.joinpath(*parts) for parts in sorted(self._members)]

    def read(self, file: Path, size: int) -> tuple[Tensor, tuple[int, int]]:
        """The centre square of a photo and its size, as `clom.data.folders.read_sized_picture` returns them."""
        content = io.BytesIO(self._content(self._members[file.relative_to(self.path).parts]))
        return to_tensor(*decode_with_size(content, size))

    def classes(self) -> tuple[dict[str, list[Path]], list[Skipped]]:
        """The photos of each class, and the files that are in the wrong place."""
        classes, skipped = dict[str, list[Path]](), list[Skipped]()
        around = self._enclosing()
        for parts in sorted(self._members):
            file, own = self.path.joinpath(*parts), parts[len(around) :]
            if parts[: len(around)] != around or len(own) < 2:
                skipped.append(Skipped(file, "outside the class folders"))
            elif len(own) > 2:
                skipped.append(Skipped(file, "a folder inside a class folder: its files are not read"))
            else:
                classes.setdefault(readable(own[0]), []).append(file)
        return classes, skipped

    def _enclosing(self) -> tuple[str, ...]:
        """The folders around all class folders, which are where most files are."""
        depths = Counter(map(len, self._members))
        depth = max(depths, key=lambda each: (depths[each], -each), default=0)
        first, *others = [parts for parts in self._members if len(parts) == depth] or [()]
        level = max(0, depth - 2)
        while any(parts[:level] != first[:level] for parts in others):
            level -= 1
        return first[:level]

    def _listed(self) -> dict[tuple[str, ...], zipfile.ZipInfo]:
        found = [info for info in self._archive.infolist() if not info.is_dir()]
        if len(found) > self.limits.files:
            raise DataError(f"{self.path} has {len(found)} files: more than the limit of {self.limits.files}.")
        total = sum(info.file_size for info in found)
        if total > self.limits.total_bytes:
            raise DataError(
                f"{self.path} would unpack to {total / 1e9:.1f} GB: more than the limit of "
                f"{self.limits.total_bytes / 1e9:g} GB."
            )
        members = {}
        for info in found:
            parts = self._parts(info.filename)
            if _SYSTEM_FOLDER not in parts and all(map(is_user_file, parts)):
                members[parts] = info
        return members

    def _parts(self, name: str) -> tuple[str, ...]:
        """The folders and the name of a member. Names that lead out of the zip file are nothing a person packs."""
        plain = name.replace("\\", "/")
        parts = tuple(part for part in plain.split("/") if part not in ("", "."))
        if plain.startswith("/") or ".." in parts or not parts or parts[0].endswith(":"):
            shown = "".join(sign if sign.isprintable() else "?" for sign in shorten(name))
            raise DataError(f"{self.path} is refused: the name '{shown}' in it leads out of the zip file.")
        return parts

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        if info.flag_bits & _ENCRYPTED:
            raise DataError("protected by a password")
        if info.compress_type not in _METHODS:
            raise DataError("compressed in an unusual way: only stored and deflated files are read")
        if info.file_size > self.limits.photo_bytes:
            raise DataError(f"too large: more than {self.limits.photo_bytes // 10**6} MB")
        try:
            with self._archive.open(info) as file:
                return file.read()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as problem:
            raise DataError(f"damaged in the zip file: {problem}") from None


class _BoundedReads(io.BufferedReader):
    """A file that yields no more than a few megabytes at once: zipfile reads the list of all members in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _DIRECTORY_BYTES + 1 if size is None or size < 0 else size
        content = super().read(min(wanted, _DIRECTORY_BYTES + 1))
        if len(content) > _DIRECTORY_BYTES:
            raise zipfile.BadZipFile("it lists too many files")
        return content


def read_zip(
    path: Path,
    size: int,
    *,
    least_images: int = 5,
    least_classes: int = 2,
    on_classes: Callable[[tuple[str, ...]], None] | None = None,
    on_file: Callable[[int, int], None] | None = None,
    limits: ZipLimits | None = None,
) -> Pictures:
    """All photos of a zip file as RGB squares, as `clom.data.folders.read_folder` reads those of a folder."""
    with ZipPhotos(path, limits) as photos:
        classes, skipped = photos.classes()
        if len(classes) < least_classes:
            found = f"only one class, '{next(iter(classes))}'," if classes else "no class folders"
            raise UserError(
                f"{path} has {found} but at least {least_classes} {'is' if least_classes == 1 else 'are'} needed. Pack "
                "one folder of pictures for each class."
            )
        if on_classes is not None:
            on_classes(tuple(classes))
        pictures = read_classes(classes, lambda file: photos.read(file, size), skipped, on_file)
    check_amounts(path, pictures, least_images)
    return pictures


class PhotoFiles:
    """Photos in files and in zip files, under one kind of path. A context manager.

    `paths` are the places of all files, those in a zip file instead of the zip file itself; zip files that cannot be
    read are in `skipped`.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.paths, self.skipped = list[Path](), list[Skipped]()
        self._zips: dict[Path, ZipPhotos] = {}
        for file in files:
            self._add(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for photos in set(self._zips.values()):
            photos.__exit__()

    def read(self, path: Path, size: int) -> tuple[Tensor, tuple[int, int]]:
        """The centre square and the size of a photo; raises a `DataError` with a short reason."""
        packed = self._zips.get(path)
        return read_sized_picture(path, size) if packed is None else packed.read(path, size)

    def _add(self, file: Path) -> None:
        if not is_zip(file):
            self.paths.append(file)
            return
        try:
            photos = ZipPhotos(file)
        except DataError as problem:
            self.skipped.append(Skipped(file, str(problem)))
            return
        self.paths += photos.files
        self._zips |= dict.fromkeys(photos.files, photos)
