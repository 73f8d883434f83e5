"""Readers of image files: IDX, CIFAR pickles, Tiny-ImageNet folders, npz, and scikit-learn's bundled digits.

Every reader validates its input and raises a `DataError` with the file name, what was expected and what was found.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from clom.data.images import DataSet, Images
from clom.data.unpickle import load_dictionary
from clom.errors import DataError
from clom.files import MAX_DATA_BYTES, check_regular, read_text

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]

_GZIP_MAGIC = b"\x1f\x8b"
_DEFLATE_LIMIT = 1032  # the maximum compression ratio of deflate
_IDX_BYTE = 8  # the type code of unsigned bytes, the only type used by images and labels
_IDX_DIMENSIONS = 4
_CHUNK = 1 << 20
_CIFAR_SHAPE = (3, 32, 32)
_TINY_SIDE, _TINY_TARGET = 64, 32
_TINY_FORMATS = ("JPEG", "PNG")
_MAX_NAME = 100
_DIGITS_TEST = 5
_MAX_TEXT = 300


# --- IDX ------------------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Bytes:
    """The byte array of an IDX file, plain or gzipped (detected by its first bytes, not its name)."""
    check_regular(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            limit = min(MAX_DATA_BYTES, path.stat().st_size * (_DEFLATE_LIMIT if zipped else 1))
            if not zipped:
                return _parse_idx(path, raw, limit)
            with gzip.GzipFile(fileobj=raw) as unzipped:
                return _parse_idx(path, unzipped, limit)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} is a damaged gzip file: {error}.") from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error


def _parse_idx(path: Path, file: BinaryIO | gzip.GzipFile, limit: int) -> Bytes:
    """Read header and body: at most one byte more than the header declares, which must not exceed `limit`."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _IDX_BYTE or not 0 < magic[3] <= _IDX_DIMENSIONS:
        raise DataError(f"{path}: expected an IDX file of bytes (magic 00 00 08 0n), found '{magic.hex(' ')}'.")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path}: expected a header with {magic[3]} dimensions, but the file ends inside it.")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    declared = math.prod(shape)
    expected = f"{path}: expected {' x '.join(map(str, shape))} = {declared} bytes after the header"
    if declared > limit or max(shape) > limit:
        why = "more than any data set has" if limit == MAX_DATA_BYTES else "but the file is too small to hold them"
        raise DataError(f"{expected}, {why}.")
    body = _read_up_to(file, declared + 1)
    if len(body) != declared:
        raise DataError(f"{expected}, found {'more' if len(body) > declared else len(body)}.")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _read_up_to(file: BinaryIO | gzip.GzipFile, count: int) -> bytearray:
    """At most `count` bytes; memory grows with the actual content, not with the declared size."""
    body = bytearray()
    while len(body) < count and (chunk := file.read(min(_CHUNK, count - len(body)))):
        body += chunk
    return body


def read_idx_images(images: Path, labels: Path, n_classes: int) -> Images:
    """One-channel images and their labels from a matching pair of IDX files."""
    pixels, marks = read_idx(images), read_idx(labels)
    if pixels.ndim != 3:
        raise DataError(f"{images}: expected images (3 dimensions), found {pixels.ndim} dimensions.")
    if marks.shape != pixels.shape[:1]:
        raise DataError(
            f"{labels}: expected {len(pixels)} labels, one per image of {images.name}, found {marks.shape}."
        )
    return as_images(labels, pixels[:, None], marks.astype(np.int64), n_classes)


# --- CIFAR ----------------------------------------------------------------------------------------------------------


def read_cifar_batch(path: Path, label_key: str) -> tuple[Bytes, Labels]:
    """Pixels `[n, 3, 32, 32]` and labels of one CIFAR pickle; `label_key` is `labels` or `fine_labels`."""
    content = load_dictionary(path)
    pixels = content.get("data")
    width = math.prod(_CIFAR_SHAPE)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (width,):
        raise DataError(f"{path}: expected 'data' to be bytes of shape [n, {width}], found {_describe(pixels)}.")
    labels = content.get(label_key)
    if (
        not isinstance(labels, list | np.ndarray)
        or (isinstance(labels, np.ndarray) and labels.ndim != 1)
        or not all(isinstance(label, int | np.integer) for label in labels)
    ):
        raise DataError(f"{path}: expected '{label_key}' to be a list of integers, found {_describe(labels)}.")
    if len(labels) != len(pixels):
        raise DataError(f"{path}: expected {len(pixels)} labels in '{label_key}', found {len(labels)}.")
    if any(not 0 <= label < 1 << 31 for label in labels):
        raise DataError(f"{path}: expected labels from 0 up in '{label_key}', below 2^31, found {_range(labels)}.")
    return pixels.reshape(-1, *_CIFAR_SHAPE).copy(), np.array(labels, np.int64)


def read_cifar_names(path: Path, key: str) -> tuple[str, ...]:
    """The class names of a CIFAR meta file; `key` is `label_names` or `fine_label_names`."""
    names = load_dictionary(path).get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path}: expected '{key}' to be a list of class names, found {_describe(names)}.")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)


def _range(labels: Sequence[int] | NDArray[np.generic]) -> str:
    """Smallest to largest, unless the numbers are huge."""
    low, high = int(min(labels)), int(max(labels))
    return f"{low} to {high}" if max(abs(low), abs(high)) < 1 << 64 else "others"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


# --- Tiny-ImageNet --------------------------------------------------------------------------------------------------


def read_tiny_imagenet(folder: Path) -> tuple[Images, Images, tuple[str, ...]]:
    """Training images, validation images (the test set, as in the paper) and class names; images resized to 32 x 32.

    Classes are sorted by WordNet id, as in every folder-based loader; the order of `wnids.txt` is arbitrary, so the
    file only determines which classes must exist.
    """
    wnids = _tiny_wnids(folder)
    train = [(path, label) for label, wnid in enumerate(wnids) for path in _tiny_class(folder / "train" / wnid)]
    return _read_pictures(train), _read_pictures(_tiny_val(folder / "val", wnids)), _tiny_names(folder, wnids)


def _tiny_wnids(folder: Path) -> list[str]:
    listed, train = folder / "wnids.txt", folder / "train"
    if listed.is_file():
        wnids = sorted(set(read_text(listed).split()))
        if odd := [wnid for wnid in wnids if not wnid.isalnum() or len(wnid) > _MAX_NAME]:
            raise DataError(f"{listed}: expected WordNet ids such as n01443537, found {odd[0][:100]!r}.")
        return wnids
    if not train.is_dir():
        raise DataError(f"{train}: expected a folder with one folder per class, found none.")
    return sorted(entry.name for entry in train.iterdir() if entry.is_dir())


def _tiny_class(folder: Path) -> list[Path]:
    try:
        pictures = sorted((folder / "images").glob("*.JPEG"))
    except OSError as error:
        raise DataError(f"Cannot list {folder}: {error.strerror or error}.") from error
    if not pictures:
        raise DataError(f"{folder / 'images'}: expected JPEG images of this class, found none.")
    return pictures


def _tiny_val(folder: Path, wnids: Sequence[str]) -> list[tuple[Path, int]]:
    """The image files and labels of `val_annotations.txt`, one per line: file name, WordNet id, box."""
    annotations, label_of = folder / "val_annotations.txt", {wnid: label for label, wnid in enumerate(wnids)}
    found: dict[Path, int] = {}
    for number, line in enumerate(read_text(annotations).splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid, place = rest.partition("\t")[0], f"{annotations}, line {number}"
        if wnid not in label_of or Path(name).name != name or len(name) > _MAX_NAME:
            raise DataError(f"{place}: expected a file name and a known class, found '{line[:200]}'.")
        if (path := folder / "images" / name) in found:  # bounds memory: each image only once
            raise DataError(f"{place}: '{name}' is listed twice.")
        found[path] = label_of[wnid]
    return list(found.items())


def _tiny_names(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first word of each class in `words.txt` if it is unique, else the WordNet id."""
    words = folder / "words.txt"
    if not words.is_file():
        return tuple(wnids)
    lines = (line.partition("\t") for line in read_text(words).splitlines())
    first = {wnid: text.split(",")[0].strip() for wnid, _, text in lines}
    count = Counter(first.get(wnid, "") for wnid in wnids)
    return tuple(first[wnid] if first.get(wnid) and count[first[wnid]] == 1 else wnid for wnid in wnids)


def _read_pictures(listed: Sequence[tuple[Path, int]]) -> Images:
    for path, _ in listed:  # before memory for all of them is allocated
        if not path.is_file():
            raise DataError(f"{path}: expected an image, found {'no regular' if path.exists() else 'no'} file.")
    pixels = np.empty((len(listed), 3, _TINY_TARGET, _TINY_TARGET), np.uint8)
    for row, (path, _) in zip(pixels, listed, strict=True):
        row[:] = _read_tiny_picture(path)
    return Images(torch.from_numpy(pixels), torch.tensor([label for _, label in listed], dtype=torch.int64))


def _read_tiny_picture(path: Path) -> Bytes:
    """One image as `[3, 32, 32]`. Decoded at full size and then resized: `draft()` would save nothing at this size and
    yield different pixels from the paper's resizing."""
    try:
        with Image.open(path, formats=_TINY_FORMATS) as picture:
            if picture.size != (_TINY_SIDE, _TINY_SIDE):  # before decoding: the size bounds the memory
                raise DataError(f"{path}: expected {_TINY_SIDE} x {_TINY_SIDE} pixels, found {picture.size}.")
            small = picture.convert("RGB").resize((_TINY_TARGET, _TINY_TARGET), Image.Resampling.BILINEAR)
    except DataError:
        raise
    except Exception as error:  # decoders can raise anything on damaged files
        raise DataError(f"{path}: expected an image, but it is damaged ({error}).") from error
    return np.asarray(small, np.uint8).transpose(2, 0, 1)


# --- npz and the embedded digits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NpzArrays:
    """The content of an npz file: images `[n, channels, height, width]` with the labels of the file."""

    train: tuple[Bytes, Labels]
    test: tuple[Bytes, Labels] | None
    class_names: tuple[str, ...] | None


def read_npz_arrays(path: Path) -> NpzArrays:
    """`images` and `labels`, and optionally `test_images`, `test_labels` and `class_names`.

    Images are uint8 `[n, height, width]`, `[n, height, width, channels]` or `[n, channels, height, width]` with one or
    three channels. Nothing is unpickled.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as packed:
            names = {name.removesuffix(".npy") for name in packed.namelist()}
            arrays = {
                name: _read_npy(packed, f"{name}.npy") for name in ("images", "labels", *sorted(names & _NPZ_MORE))
            }
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # readers can raise anything on damaged archives and headers
        why = str(error)[:_MAX_TEXT] or type(error).__name__
        raise DataError(f"{path}: expected an npz file with 'images' and 'labels', but {why}.") from error
    if ("test_images" in arrays) != ("test_labels" in arrays):
        raise DataError(f"{path}: expected both 'test_images' and 'test_labels', or neither.")
    test = _npz_part(path, arrays, "test_") if "test_images" in arrays else None
    return NpzArrays(_npz_part(path, arrays, ""), test, _npz_names(path, arrays.get("class_names")))


def read_npz_images(path: Path, n_classes: int) -> Images:
    """The `images` and `labels` of an npz file with labels from 0 to `n_classes` - 1."""
    return as_images(path, *read_npz_arrays(path).train, n_classes)


_NPZ_MORE = {"test_images", "test_labels", "class_names"}
_CHANNELS = (1, 3)


def _npz_part(path: Path, arrays: Mapping[str, NDArray[np.generic]], part: str) -> tuple[Bytes, Labels]:
    pixels, labels = arrays[f"{part}images"], arrays[f"{part}labels"]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim == 4 and pixels.shape[3] in _CHANNELS:
        pixels = pixels.transpose(0, 3, 1, 2)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] not in _CHANNELS or 0 in pixels.shape[2:]:
        raise DataError(
            f"{path}: expected '{part}images' to be uint8 [n, height, width, 1 or 3], found "
            f"{_describe(arrays[f'{part}images'])}."
        )
    if labels.shape != pixels.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{path}: expected {len(pixels)} integers in '{part}labels', found {_describe(labels)}.")
    return np.ascontiguousarray(pixels), labels.astype(np.int64)


def _npz_names(path: Path, names: NDArray[np.generic] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{path}: expected 'class_names' to be a list of strings, found {_describe(names)}.")
    return tuple(str(name) for name in names)


def _read_npy(packed: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """One array of an npz file; memory is allocated for the actual content, not for the declared size."""
    if packed.getinfo(name).file_size > MAX_DATA_BYTES:
        raise DataError(f"expected '{name}' to hold {MAX_DATA_BYTES} bytes or fewer.")
    content = bytearray(packed.read(name))  # not bytes: tensors that share their memory would be read-only
    file = io.BytesIO(content)
    parse = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
    shape, fortran, kind = parse(file)
    declared, found = math.prod(shape) * kind.itemsize, len(content) - file.tell()
    if kind.hasobject or min(shape, default=0) < 0 or declared != found:
        raise DataError(f"expected '{name}' to hold {kind} {list(shape)}, found {found} bytes.")
    return np.frombuffer(content, kind, offset=file.tell()).reshape(shape, order="F" if fortran else "C")


def read_digits() -> DataSet:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, which need no download.

    They have no predefined split. Ours is fixed and independent of seeds: every fifth image of each class, in file
    order, is a test image. (The file is ordered by writer; a cut at 80% would test on other writers.)
    """
    from sklearn.datasets import load_digits  # takes half a second to import

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255.0 / 16.0)).astype(np.uint8)[:, None]
    every = Images(torch.from_numpy(pixels), torch.from_numpy(bunch.target.astype(np.int64)))
    is_test = torch.zeros(len(every), dtype=torch.bool)
    for label in range(10):
        rows = (every.labels == label).nonzero()[:, 0]
        is_test[rows[_DIGITS_TEST - 1 :: _DIGITS_TEST]] = True
    return DataSet("digits", tuple("0123456789"), every[~is_test], every[is_test])


def as_images(path: Path, pixels: Bytes, labels: Labels, n_classes: int) -> Images:
    """Arrays as `Images`, after checking the labels; `path` is named in the error."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise DataError(f"{path}: expected labels from 0 to {n_classes - 1}, found {labels.min()} to {labels.max()}.")
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))
