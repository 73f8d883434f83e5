"""Decoding untrusted image files to square RGB arrays, with bounded memory and without running external programs.

Nothing here needs torch, so that a small separate process can decode uploads.

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
"""Limit on decoded pixels, at up to eight bytes each: 200 to 400 MB, independent of the file's header."""

_RUNS_PROGRAMS = {"EPS"}  # pillow passes these to Ghostscript
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
    """The centre square of an image as uint8 `[size, size, 3]`: EXIF orientation applied, transparency on white.

    Raises a `DataError` with a short reason if the image cannot be decoded.
    """
    return decode_with_size(source, size)[0]


def decode_with_size(source: Path | BytesIO, size: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The same, and the width and height of the image in the file."""
    return _opened(source, lambda image: _square_and_size(image, size))


def picture_size(source: Path | BytesIO) -> tuple[int, int]:
    """Width and height from the file's header, without decoding. Raises a `DataError` like `decode`."""
    return _opened(source, lambda image: image.size)


def _opened(source: Path | BytesIO, use: Callable[[Image.Image], T]) -> T:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, which are checked below, and metadata
            with Image.open(source, formats=_formats()) as image:
                return use(image)
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError("not a picture, or an unknown format") from None
    except Image.DecompressionBombError:
        raise DataError(f"too large: more than {MAX_PIXELS // 10**6} million pixels") from None
    except MemoryError:
        raise DataError("too large for the memory of this machine") from None
    except Exception as problem:  # pillow's decoders can raise anything on damaged files
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"damaged or not supported: {text[:200]}") from None


def _formats() -> list[str]:
    Image.init()
    return sorted(set(Image.OPEN) - _RUNS_PROGRAMS)


def _square_and_size(image: Image.Image, size: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    full = image.size  # before `draft`, which makes it smaller
    return _square(image, size), full


def _square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Decode to `[size, size, 3]`, after checking in the header that the image fits into memory."""
    width, height = image.size
    if min(width, height) < 1:
        raise DataError(f"has no pixels: {width} x {height}")
    # JPEG decoders can halve the size up to three times while decoding; the short side keeps at least `size` pixels.
    image.draft(None, (size, size))
    # Decoding a progressive JPEG needs memory for its full size.
    width, height = (width, height) if image.info.get("progressive") else image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"too large: {width} x {height} is more than {MAX_PIXELS // 10**6} million pixels")
    image.load()
    values = _to_colours(image, size)
    turn = _TURNS.get(_orientation(image))  # after loading, which already rotates TIFF files
    return np.array(values if turn is None else values.transpose(turn))


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) if the EXIF data are unreadable."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data can raise anything, and the image is still usable
        return 1
    return value if isinstance(value, int) else 1


def _to_colours(image: Image.Image, size: int) -> Image.Image:
    """The centre square in RGB at the given size."""
    if image.mode.startswith("I") or image.mode == "F":
        return _from_numbers(image, size)
    if image.has_transparency_data:
        # Resized in RGBA, so that the colour of transparent pixels does not bleed into visible ones.
        small = _middle(image.convert("RGBA"), size)
        return Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB")
    return _middle(image.convert("RGB"), size)


def _from_numbers(image: Image.Image, size: int) -> Image.Image:
    """A single channel of 16 or 32 bits. If its range is unknown, values are scaled to the full grey range."""
    numbers = image.convert("F")
    values = np.asarray(_middle(numbers, size), dtype=np.float64)
    low, high = (float(value) for value in numbers.getextrema())  # type: ignore[arg-type]
    if not np.isfinite(values).all() or not np.isfinite((low, high)).all():
        raise DataError("contains NaN or infinite values")
    if image.mode.startswith("I;16") or (image.mode == "I" and low >= 0 and 255 < high <= 65535):
        low, high = 0.0, 65535.0
    elif low >= 0 and high <= 255 and image.mode == "I":
        low, high = 0.0, 255.0
    grey = (values - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(grey.round().clip(0, 255).astype(np.uint8)).convert("RGB")


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The largest centred square, resampled; invariant to rotations and flips of the image."""
    side = min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
