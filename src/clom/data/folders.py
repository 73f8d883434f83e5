"""A person's own pictures: one folder per class, any formats and sizes, some of the files broken.

Whatever a file holds, it costs bounded memory and never stops the others: what cannot be read is listed with a reason.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import DataError, UserError

MOST_PIXELS = 50_000_000
"""What is decoded at once, at up to eight bytes a pixel: 200 to 400 MB, whatever the file promises."""

_NOT_OURS = {"thumbs.db", "desktop.ini"}  # what systems leave in folders of pictures; hidden files are passed over, too
_RUNS_PROGRAMS = {"EPS"}  # pillow hands these to Ghostscript
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Skipped:
    """A file that gave no picture, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Pictures:
    """What a folder holds: `paths[i]` is where picture i came from; classes and files in the order of their names."""

    class_names: tuple[str, ...]
    images: Images
    paths: tuple[Path, ...]
    skipped: tuple[Skipped, ...]

    def task(self, name: str, validation: float = 0.2, seed: int = 0) -> Task:
        """The pictures as a task: the share `validation` of each class, at least one picture, is held out."""
        randomness = torch.Generator().manual_seed(seed)
        kept, held = [], []
        for label in range(len(self.class_names)):
            rows = (self.images.labels == label).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=randomness)]
            count = min(max(1, round(validation * len(rows))), len(rows) - 1)
            held.append(rows[:count])
            kept.append(rows[count:])
        train, validating = (self.images[torch.cat(part).sort().values] for part in (kept, held))
        return Task(name, self.class_names, train, validating)


def read_folder(
    folder: Path,
    size: int,
    *,
    least_images: int = 5,
    least_classes: int = 2,
    on_file: Callable[[int, int], None] | None = None,
) -> Pictures:
    """All pictures of `folder/class/file` as squares of `size` pixels in three colours.

    `on_file` is told after every file how many of how many are done. Too few classes or pictures are refused.
    """
    classes, skipped = _classes(folder, least_classes)
    files = [(path, label) for label, inside in enumerate(classes.values()) for path in inside]
    pixels, labels, paths = list[Tensor](), list[int](), list[Path]()
    for done, (path, label) in enumerate(files, start=1):
        try:
            pixels.append(read_picture(path, size))
            labels.append(label)
            paths.append(path)
        except DataError as problem:
            skipped.append(Skipped(path, str(problem)))
        if on_file is not None:
            on_file(done, len(files))
    _check_amounts(folder, tuple(classes), labels, skipped, least_images)
    images = Images(torch.stack(pixels), torch.tensor(labels))
    return Pictures(tuple(classes), images, tuple(paths), tuple(sorted(skipped, key=lambda file: str(file.path))))


def class_names_of(folder: Path, least_classes: int = 2) -> tuple[str, ...]:
    """The names that `read_folder` would give the classes, without reading a picture."""
    return tuple(_classes(folder, least_classes)[0])


def read_picture(path: Path, size: int) -> Tensor:
    """The middle square of a picture, upright, transparent parts white, as bytes `[3, size, size]`.

    A `DataError` says in a few words what is wrong with the file, without naming it.
    """
    if not path.is_file():  # a pipe would wait for ever for somebody to write to it
        raise DataError("there is no such file" if not path.exists() else "not a regular file")
    try:
        if path.stat().st_size == 0:
            raise DataError("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bombs, which are judged below, and odd metadata
            with Image.open(path, formats=_formats()) as image:
                square = _square(image, size)
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError("not a picture, or of an unknown format") from None
    except Image.DecompressionBombError:
        raise DataError(f"too large: more than {MOST_PIXELS // 10**6} million pixels") from None
    except MemoryError:
        raise DataError("too large for the memory of this machine") from None
    except Exception as problem:  # pillow's decoders raise nearly anything on damaged files
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"damaged or not supported: {text[:200]}") from None
    return torch.from_numpy(square).permute(2, 0, 1).contiguous()


# ------------------------------------------------------------------------------------------------- from file to square


def _formats() -> list[str]:
    Image.init()
    return sorted(set(Image.OPEN) - _RUNS_PROGRAMS)


def _square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """`[size, size, 3]`. The file is decoded here, once its header has shown that it fits into memory."""
    width, height = image.size
    if min(width, height) < 1:
        raise DataError(f"has no pixels: {width} x {height}")
    # JPEG decoders can halve up to three times while they decode; the short side keeps at least `size` pixels.
    image.draft(None, (size, size))
    # A progressive JPEG is held whole while it is decoded, however small the result.
    width, height = (width, height) if image.info.get("progressive") else image.size
    if width * height > MOST_PIXELS:
        raise DataError(f"too large: {width} x {height} is more than {MOST_PIXELS // 10**6} million pixels")
    image.load()
    values = _to_colours(image, size)
    turn = _TURNS.get(_orientation(image))  # after loading: TIFF files are turned by then and say so
    return np.array(values if turn is None else values.transpose(turn))


def _orientation(image: Image.Image) -> int:
    """EXIF's way up; a picture with unreadable EXIF data is taken as it is."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # anything can be in there, and nothing of it is worth losing the picture
        return 1
    return value if isinstance(value, int) else 1


def _to_colours(image: Image.Image, size: int) -> Image.Image:
    """The middle square in RGB at the wanted size."""
    if image.mode.startswith("I") or image.mode == "F":
        return _from_numbers(image, size)
    if image.has_transparency_data:
        # Shrunk with its transparency, so that the colour of invisible pixels does not bleed into the visible ones.
        small = _middle(image.convert("RGBA"), size)
        return Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB")
    return _middle(image.convert("RGB"), size)


def _from_numbers(image: Image.Image, size: int) -> Image.Image:
    """One channel of 16 or 32 bits. Without a range of their own, values are stretched over all greys."""
    numbers = image.convert("F")
    values = np.asarray(_middle(numbers, size), dtype=np.float64)
    low, high = (float(value) for value in numbers.getextrema())  # type: ignore[arg-type]
    if not np.isfinite(values).all() or not np.isfinite((low, high)).all():
        raise DataError("holds values that are not numbers")
    if image.mode.startswith("I;16") or (image.mode == "I" and low >= 0 and 255 < high <= 65535):
        low, high = 0.0, 65535.0
    elif low >= 0 and high <= 255 and image.mode == "I":
        low, high = 0.0, 255.0
    grey = (values - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(grey.round().clip(0, 255).astype(np.uint8)).convert("RGB")


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The largest square around the middle, resampled. It does not move when the picture is turned or mirrored."""
    side = min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


# ------------------------------------------------------------------------------------------------- what is in a folder


def _classes(folder: Path, least: int) -> tuple[dict[str, list[Path]], list[Skipped]]:
    """The files of each class, and what lies where it is not looked for."""
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder." if folder.exists() else f"There is no folder {folder}.")
    folders, loose = _content(folder)
    if not folders:
        found = f"holds {len(loose)} files but no folders" if loose else "is empty"
        raise UserError(f"{folder} {found}. Make one folder for each class in it and put the pictures there.")
    names = [readable(path.name) for path in folders]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"Two folders of {folder} have the same name: {', '.join(twice)}. Rename one of them.")
    if len(names) < least:
        raise UserError(
            f"{folder} has one class only, '{names[0]}': at least {least} are needed to tell something apart. "
            "Put another folder of pictures beside it."
        )
    skipped = [Skipped(path, "lies outside of the class folders") for path in loose]
    classes = {}
    for name, path in zip(names, folders, strict=True):
        inner, classes[name] = _content(path)
        if inner and not classes[name]:
            raise UserError(
                f"'{name}' in {folder} holds no pictures but folders ({_some(file.name for file in inner)}). If these "
                f"are the classes, give {path} instead; otherwise put the pictures directly into {path}."
            )
        skipped += [Skipped(file, "a folder inside of a class: its files are not read") for file in inner]
    return classes, skipped


def _content(folder: Path) -> tuple[list[Path], list[Path]]:
    """Folders and other files of a folder, sorted by name on every system alike, hidden ones left out."""
    try:
        found = sorted(folder.iterdir(), key=lambda path: (readable(path.name), path.name))
    except OSError as problem:
        raise UserError(f"Cannot look into {folder}: {problem.strerror or problem}.") from None
    found = [path for path in found if is_ours(path.name)]
    folders = [path for path in found if path.is_dir()]
    return folders, [path for path in found if not path.is_dir()]


def is_ours(name: str) -> bool:
    """Whether a file of this name may be a person's picture: not hidden, not left by a system."""
    return not name.startswith(".") and name.lower() not in _NOT_OURS


def readable(name: str) -> str:
    """A file name as text: the same on systems that spell é in one or in two characters, always printable."""
    return unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())


def _check_amounts(
    folder: Path, names: Sequence[str], labels: Sequence[int], skipped: Sequence[Skipped], least: int
) -> None:
    count = Counter(labels)
    few = [f"'{name}' {count[label]}" for label, name in enumerate(names) if count[label] < max(1, least)]
    if not few:
        return
    problem = f"Each class needs {least} pictures or more; in {folder} these have fewer: {', '.join(few)}."
    if skipped:
        reasons = _some(f"{file.path.name} ({file.reason})" for file in skipped)
        problem += f" {len(skipped)} files were skipped: {reasons}."
    raise UserError(problem)


def _some(items: Iterable[str], most: int = 3) -> str:
    """The first few of them, and how many more there are."""
    listed = list(items)
    rest = [f"and {len(listed) - most} more"] if len(listed) > most else []
    return ", ".join([*listed[:most], *rest])
