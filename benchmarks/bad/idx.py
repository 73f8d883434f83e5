"""Bad IDX files, plain and gzipped, read as `clom run` reads them."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil, spoil_file
from benchmarks.bad.places import ZEROS, in_folder, load

_PIXELS = np.arange(6 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(6, 28, 28)
_IMAGES, _LABELS = "notMNIST/raw/t10k-images-idx3-ubyte.gz", "notMNIST/raw/t10k-labels-idx1-ubyte.gz"


def idx(shape: tuple[int, ...], body: bytes, code: int = 8, dimensions: int | None = None) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, count, *shape) + body


GOOD_IMAGES, GOOD_LABELS = idx(_PIXELS.shape, _PIXELS.tobytes()), idx((6,), bytes(range(6)))


def _idx_pair(pack: Callable[[bytes], bytes], images: bytes = GOOD_IMAGES, labels: bytes = GOOD_LABELS) -> Make:
    def make(folder: Path, randomness: Random) -> None:
        in_folder(_IMAGES, pack(images))(folder, randomness)
        in_folder(_LABELS, pack(labels))(folder, randomness)

    return make


def _with_training(tests: Make, pack: Callable[[bytes], bytes], side: int) -> Make:
    """Training images of another size than the test images."""

    def make(folder: Path, randomness: Random) -> None:
        tests(folder, randomness)
        in_folder(_IMAGES.replace("t10k", "train"), pack(idx((6, side, side), bytes(6 * side**2))))(folder, randomness)
        in_folder(_LABELS.replace("t10k", "train"), pack(GOOD_LABELS))(folder, randomness)

    return make


def _idx_special(pack: Callable[[bytes], bytes]) -> Mapping[str, Make]:
    pair = partial(_idx_pair, pack)
    found = {
        "empty": pair(b""),
        "no images": pair(idx((0, 28, 28), b""), idx((0,), b"")),
        "no pixels": pair(idx((6, 0, 28), b"")),
        "floats": pair(idx((6,), b"\0" * 24, code=13)),
        "no dimensions": pair(idx((), b"")),
        "255 dimensions": pair(idx((1,) * 255, b"x")),
        "255 dimensions, header cut": pair(idx((1,) * 3, b"", dimensions=255)),
        "promises 2^96 bytes": pair(idx((2**32 - 1,) * 3, b"")),
        "promises 4 GB": pair(idx((2**32 - 1, 1, 1), b"x" * 100)),
        "one byte more": pair(GOOD_IMAGES + b"x"),
        "labels too large": pair(labels=idx((6,), bytes([0, 1, 2, 3, 4, 200]))),
        "too few labels": pair(labels=idx((5,), bytes(5))),
        "labels in two dimensions": pair(labels=idx((6, 1), bytes(6))),
        "images are labels": pair(GOOD_LABELS, GOOD_IMAGES),
        "pickle": pair(pickle.dumps({"data": 1})),
    }
    for side in (1, 27, 32, 300):
        found[f"training images of {side} pixels"] = _with_training(pair(), pack, side)
    for length in range(0, len(GOOD_IMAGES), 1024):
        found[f"cut after {length} bytes"] = pair(GOOD_IMAGES[:length])
    return found


def _gzip_special() -> Mapping[str, Make]:
    bomb = gzip.compress(idx((ZEROS // 784, 28, 28), b"")) + gzip.compress(bytes(10**7)) * (ZEROS // 10**7)
    plain = partial(_idx_pair, bytes)
    zipped = gzip.compress(GOOD_IMAGES)
    return {
        **_idx_special(gzip.compress),
        "bomb": plain(bomb, gzip.compress(GOOD_LABELS)),
        "twice gzipped": plain(gzip.compress(zipped)),
        "two members": plain(zipped + gzip.compress(b"x")),
        "zeros behind it": plain(zipped + bytes(5000)),
        "noise behind it": plain(zipped + b"noise"),
        "wrong checksum": plain(zipped[:-8] + bytes(4) + zipped[-4:]),
        "header only": plain(zipped[:10]),
        "endless file name": plain(b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 100_000),
        "unknown method": plain(b"\x1f\x8b\x07" + zipped[3:]),
    }


def _plain_special() -> Mapping[str, Make]:
    def pipe(folder: Path, randomness: Random) -> None:
        _idx_pair(bytes)(folder, randomness)
        (folder / _IMAGES).unlink()
        os.mkfifo(folder / _IMAGES)

    def directory(folder: Path, randomness: Random) -> None:
        (folder / _IMAGES).mkdir(parents=True)
        (folder / _LABELS).mkdir(parents=True)

    return {**_idx_special(bytes), "a pipe nobody writes to": pipe, "folders": directory}


def _idx_chance(pack: Callable[[bytes], bytes], folder: Path, randomness: Random) -> None:
    images, labels = GOOD_IMAGES, GOOD_LABELS
    if randomness.random() < 0.5:
        images, labels = spoil(images, randomness), randomness.choice((labels, spoil(labels, randomness)))
    _idx_pair(pack, images, labels)(folder, randomness)
    if randomness.random() < 0.5:
        spoil_file(folder / randomness.choice((_IMAGES, _LABELS)), randomness)


def readers() -> list[Reader]:
    return [
        Reader("IDX", _plain_special, partial(_idx_chance, bytes), partial(load, "notmnist")),
        Reader("IDX, gzipped", _gzip_special, partial(_idx_chance, gzip.compress), partial(load, "notmnist")),
    ]
