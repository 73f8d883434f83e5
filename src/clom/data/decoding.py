"""From the bytes of a picture, whoever made them, to a square of colours. Bounded memory, and no program is ever run.

Nothing here needs torch, so that a small process of its own can decode what strangers send.

Tested by tests/data/test_folders.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from clom.errors import DataError

T = TypeVar("T")

MAX_PIXELS = 50_000_000
"""What is decoded at once, at up to eight bytes a pixel: 200 to 400 MB, whatever the file promises."""

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


def decode(source: Path | BytesIO, size: int) -> NDArray[np.uint8]:
    """The middle square of a picture, upright, transparent parts white, as bytes `[size, size, 3]`.

    A `DataError` says in a few words what is wrong with the picture.
    """
    return _opened(source, lambda image: _square(image, size))


def picture_size(source: Path | BytesIO) -> tuple[int, int]:
    """Width and height as the file's header has them; nothing is decoded. Raises a `DataError` as `decode` does."""
    return _opened(source, lambda image: image.size)


def _opened(source: Path | BytesIO, use: Callable[[Image.Image], T]) -> T:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bombs, which are judged below, and odd metadata
            with Image.open(source, formats=_formats()) as image:
                return use(image)
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError("not a picture, or of an unknown format") from None
    except Image.DecompressionBombError:
        raise DataError(f"too large: more than {MAX_PIXELS // 10**6} million pixels") from None
    except MemoryError:
        raise DataError("too large for the memory of this machine") from None
    except Exception as problem:  # pillow's decoders raise nearly anything on damaged files
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"damaged or not supported: {text[:200]}") from None


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
    if width * height > MAX_PIXELS:
        raise DataError(f"too large: {width} x {height} is more than {MAX_PIXELS // 10**6} million pixels")
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
