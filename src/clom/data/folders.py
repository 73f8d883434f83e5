"""Reading folders of pictures: one folder per class, any formats and sizes.

Memory per file is bounded, and unreadable files do not stop the others: they are listed with a reason.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clom.data.decoding import decode_with_size
from clom.data.images import Images
from clom.data.stratified import hold_out, share_of, split_rows
from clom.data.stream import Task
from clom.errors import DataError, UserError
from clom.untrusted_text import on_one_line

_SYSTEM_FILES = {
    "thumbs.db",
    "desktop.ini",
}  # what systems leave in folders of pictures; hidden files are passed over, too


OUTSIDE = "a link to a file outside the folder"


@dataclass(frozen=True)
class Skipped:
    """A file that could not be read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures of a folder, sorted by class and file name; `paths[i]` is the file of picture i."""

    class_names: tuple[str, ...]
    images: Images
    paths: tuple[Path, ...]
    skipped: tuple[Skipped, ...]
    n_outside: int = 0
    """How many of the pictures are links to files outside the folder."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Width and height of each picture in its file; empty if unknown."""

    def task(self, name: str, validation: float = 0.2, seed: int = 0) -> Task:
        """The pictures as a task, with the share `validation` of each class held out: at least one picture, unless the
        share is 0."""
        train, held = self.split(validation, seed)
        return Task(name, self.class_names, self.images[train], self.images[held])

    def split(self, validation: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The rows for training and the held-out rows of `task`, each in ascending order."""
        if not validation:
            return torch.arange(len(self.images)), torch.arange(0)
        randomness = torch.Generator().manual_seed(seed)
        drawn = hold_out(self.images.labels, len(self.class_names), share_of(validation), randomness)
        return split_rows(drawn)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The folder and the name of each picture's file, for display."""
        return tuple(readable("/".join(path.parts[-2:])) for path in self.paths)

    def part(self, rows: Tensor, with_skipped: bool = True) -> Pictures:
        """The pictures selected by the mask `rows`."""
        paths = tuple(path for path, chosen in zip(self.paths, rows.tolist(), strict=True) if chosen)
        sizes = tuple(size for size, chosen in zip(self.sizes, rows.tolist(), strict=False) if chosen)
        return Pictures(self.class_names, self.images[rows], paths, self.skipped if with_skipped else (), sizes=sizes)


def read_folder(
    folder: Path,
    size: int,
    *,
    least_images: int = 5,
    least_classes: int = 2,
    links: bool = True,
    on_classes: Callable[[tuple[str, ...]], None] | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> Pictures:
    """All pictures of `folder/class/file` as RGB squares of `size` pixels.

    `on_classes` is called with the class names before any picture is read, and may raise; `on_file` is called with the
    numbers of processed and total files after each one. Links to files outside the folder are followed and counted, or
    skipped if `links` is False. Raises a `UserError` for too few classes or pictures.
    """
    classes, skipped = _classes(folder, least_classes)
    if on_classes is not None:
        on_classes(tuple(classes))

    def read(path: Path) -> tuple[Tensor, tuple[int, int]]:
        if not links and leads_outside(path, folder):
            raise DataError(OUTSIDE)
        return read_sized_picture(path, size)

    pictures = read_classes(classes, read, skipped, on_file)
    check_amounts(folder, pictures, least_images)
    return replace(pictures, n_outside=sum(leads_outside(path, folder) for path in pictures.paths))


def leads_outside(path: Path, folder: Path) -> bool:
    """Whether a file in a folder is really elsewhere, through a link on the way to it."""
    steps = (path, *path.parents)[: len(path.parts) - len(folder.parts)]
    if not any(step.is_symlink() for step in steps):
        return False
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return True


def read_classes(
    classes: Mapping[str, Sequence[Path]],
    read: Callable[[Path], tuple[Tensor, tuple[int, int]]],
    skipped: Iterable[Skipped] = (),
    on_file: Callable[[int, int], None] | None = None,
) -> Pictures:
    """The pictures of each class. `read` returns the pixels and the size of a picture in its file; files for which it
    raises a `DataError` are skipped."""
    files = [(path, label) for label, inside in enumerate(classes.values()) for path in inside]
    pixels, sizes, bad = list[Tensor](), list[tuple[int, int]](), list(skipped)
    labels, paths = list[int](), list[Path]()
    for done, (path, label) in enumerate(files, start=1):
        try:
            square, taken = read(path)
            pixels.append(square)
            sizes.append(taken)
            labels.append(label)
            paths.append(path)
        except DataError as problem:
            bad.append(Skipped(path, str(problem)))
        if on_file is not None:
            on_file(done, len(files))
    images = Images(
        torch.stack(pixels) if pixels else torch.empty(0, 3, 1, 1, dtype=torch.uint8),
        torch.tensor(labels, dtype=torch.int64),
    )
    bad.sort(key=lambda file: str(file.path))
    return Pictures(tuple(classes), images, tuple(paths), tuple(bad), sizes=tuple(sizes))


def picture_files(folder: Path) -> list[Path]:
    """The files that `read_folder` would try to read."""
    return [path for files in _classes(folder, least=1)[0].values() for path in files]


def read_picture(path: Path, size: int) -> Tensor:
    """The centre square of a picture as uint8 `[3, size, size]`: EXIF orientation applied, transparency on white.

    Raises a `DataError` with a short reason, without the file name.
    """
    return read_sized_picture(path, size)[0]


def read_sized_picture(path: Path, size: int) -> tuple[Tensor, tuple[int, int]]:
    """The same, and the width and height of the picture in the file."""
    if not path.is_file():  # reading a pipe could block forever
        raise DataError("there is no such file" if not path.exists() else "not a regular file")
    try:
        if path.stat().st_size == 0:
            raise DataError("the file is empty")
    except OSError as problem:
        raise DataError(f"cannot be read: {problem.strerror or problem}") from None
    return to_tensor(*decode_with_size(path, size))


def to_tensor(square: NDArray[np.uint8], size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """A decoded picture as uint8 `[3, side, side]`, and its size unchanged."""
    return torch.from_numpy(square).permute(2, 0, 1).contiguous(), size


# --------------------------------------------------------------------------------------------------- folder contents


def _classes(folder: Path, least: int) -> tuple[dict[str, list[Path]], list[Skipped]]:
    """The files of each class, and the files that are in the wrong place."""
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder." if folder.exists() else f"There is no folder {folder}.")
    folders, loose = folder_content(folder)
    if not folders:
        found = f"contains {len(loose)} files but no folders" if loose else "is empty"
        raise UserError(f"{folder} {found}. Create one folder per class in it and put the pictures there.")
    names = [_normalised(path.name) for path in folders]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(
            f"Two folders of {folder} have the same name: {', '.join(map(on_one_line, twice))}. Rename one of them."
        )
    if len(names) < least:
        raise UserError(
            f"{folder} has only one class, '{on_one_line(names[0])}', but at least {least} are needed. Add another "
            "folder of pictures next to it."
        )
    skipped = [Skipped(path, "outside the class folders") for path in loose]
    classes = {}
    for name, path in zip(names, folders, strict=True):
        inner, classes[name] = folder_content(path)
        if inner and not classes[name]:
            raise UserError(
                f"'{name}' in {folder} contains folders ({listed(file.name for file in inner)}) instead of pictures. "
                f"If these are the classes, use {path} instead; otherwise put the pictures directly into {path}."
            )
        skipped += [Skipped(file, "a folder inside a class folder: its files are not read") for file in inner]
    return classes, skipped


def folder_content(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, sorted by name identically on every system, without hidden ones."""
    try:
        found = sorted(folder.iterdir(), key=lambda path: (readable(path.name), path.name))
    except OSError as problem:
        raise UserError(f"Cannot list {folder}: {problem.strerror or problem}.") from None
    found = [path for path in found if is_user_file(path.name)]
    folders = [path for path in found if path.is_dir()]
    return folders, [path for path in found if not path.is_dir()]


def is_user_file(name: str) -> bool:
    """Whether a file of this name may be a picture: not hidden, not created by the operating system."""
    return not name.startswith(".") and name.lower() not in _SYSTEM_FILES


def readable(name: str) -> str:
    """A file name as it is shown: on one line, with control characters as escapes."""
    return on_one_line(_normalised(name))


def _normalised(name: str) -> str:
    """A file name as text, normalised to NFC, since systems encode é as one or two characters."""
    return unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())


def check_amounts(place: Path, pictures: Pictures, least: int) -> None:
    """Raise a `UserError` if a class has fewer than `least` pictures."""
    count, skipped = Counter(pictures.images.labels.tolist()), pictures.skipped
    names = enumerate(pictures.class_names)
    few = [f"'{name}' {count[label]}" for label, name in names if count[label] < max(1, least)]
    if not few:
        return
    problem = f"Each class needs at least {least} pictures; these in {place} have fewer: {', '.join(few)}."
    if skipped:
        reasons = listed(f"{file.path.name} ({file.reason})" for file in skipped)
        problem += f" {len(skipped)} files were skipped: {reasons}."
    raise UserError(problem)


def listed(items: Iterable[str], limit: int = 3) -> str:
    """The first few items, and the number of the others."""
    texts = list(items)
    rest = [f"and {len(texts) - limit} more"] if len(texts) > limit else []
    return ", ".join([*texts[:limit], *rest])
