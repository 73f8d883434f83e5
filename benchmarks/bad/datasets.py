"""Bad IDX files and CIFAR pickles, read as `clom run` reads them."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil, spoil_file
from benchmarks.bad.payload import hostile_pickles
from clom.data import catalog

ZEROS = 1_500_000_000  # what a bomb unpacks to
_PIXELS = np.arange(6 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(6, 28, 28)


def load(name: str, folder: Path) -> object:
    return catalog.load(name, folder, download=False)


def in_folder(name: str, content: bytes) -> Callable[[Path, Random], None]:
    def make(folder: Path, randomness: Random) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return make


def deflated_zeros(count: int) -> bytes:
    """So many million zeros as a deflate stream, without ever holding them: one million, written over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    million = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    return million * -(-count // 10**6) + b"\x03\x00"


# --- IDX -------------------------------------------------------------------------------------------------------------

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


# --- CIFAR -----------------------------------------------------------------------------------------------------------


def batch(count: int = 4, key: str = "labels", **changes: Any) -> dict[str, Any]:
    pixels = np.arange(count * 3072, dtype=np.uint32).astype(np.uint8).reshape(count, 3072)
    names = [f"{number}.png" for number in range(count)]
    return {"batch_label": "b", key: list(range(count)), "data": pixels, "filenames": names} | changes


def nested_tuples(depth: int) -> bytes:
    """Instructions that leave a tuple of two equal tuples of two equal tuples ... : small, but not to a hash."""
    return b")" + b"2\x86" * depth


_BOMBS = {
    "tuples as key": b"\x80\x02}" + nested_tuples(60) + b"K\x01s.",
    "tuples as keys": b"\x80\x02}(" + nested_tuples(60) + b"K\x01u.",
    "tuples in a dictionary": b"\x80\x02(" + nested_tuples(60) + b"K\x01d.",
    "tuples in a set": b"\x80\x04\x8f(" + nested_tuples(60) + b"\x90.",
    "tuples in a frozen set": b"\x80\x04(" + nested_tuples(60) + b"\x91.",
    "tuples as type": b"\x80\x02cnumpy\ndtype\n" + nested_tuples(60) + b"\x85R.",
    "tuples as shape": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    + nested_tuples(60) + b"tR.",
    "tuples as value": b"\x80\x02}X\x04\x00\x00\x00data" + nested_tuples(60) + b"sX\x06\x00\x00\x00labels"
    + nested_tuples(60) + b"s.",
    "table of 4 billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "text table index": b"}p4294967294\n.",
    "text of 4 GB": b"\x80\x02X\xff\xff\xff\xffabc.",
    "bytes of 2^60": b"\x80\x05\x8e" + struct.pack("<Q", 2**60) + b"abc.",
    "array of bytes of 3 GB": b"\x80\x05\x96" + struct.pack("<Q", 3 * 10**9) + b"abc.",
    "frame of 2^62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.",
    "integer of a million digits": b"L" + b"9" * 10**6 + b"L\n.",
    "million marks": b"\x80\x02" + b"(" * 10**6 + b".",
    "million lists in one another": b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
    "many instructions": b"\x80\x02" + b"N0" * 11 * 10**5 + b"}.",
    "list in itself": b"\x80\x02]q\x00h\x00a.",
    "stack that is empty": b"\x80\x02s.",
    "no end": b"\x80\x02}",
    "a protocol of the future": b"\x80\xff}.",
    "persistent name": b"Pname\n.",
    "extension": b"\x80\x02\x82\x01.",
}  # fmt: skip

_ODD_BATCHES: Mapping[str, dict[str, Any]] = {
    "no data": batch(data=None),
    "data as text": batch(data="pixels"),
    "data as numbers": batch(data=np.zeros((4, 3072))),
    "data too narrow": batch(data=np.zeros((4, 3071), np.uint8)),
    "data in four dimensions": batch(data=np.zeros((4, 3, 32, 32), np.uint8)),
    "data of objects": batch(data=np.array([[1, "2"]], dtype=object)),
    "data of records": batch(data=np.zeros(3, [("a", "u1")])),
    "scalar data": batch(data=np.array(3, np.uint8)),
    "labels negative": batch(labels=[0, 1, 2, -1]),
    "labels beyond": batch(labels=[0, 1, 2, 10]),
    "labels gigantic": batch(labels=[0, 1, 2, 10**4000]),
    "labels as text": batch(labels=["0", "1", "2", "3"]),
    "labels as floats": batch(labels=[0.0, 1.0, 2.0, 3.0]),
    "labels too few": batch(labels=[0]),
    "labels in two dimensions": batch(labels=np.zeros((4, 4), np.int64)),
    "labels a scalar": batch(labels=np.array(3)),
    "labels a dictionary": batch(labels={0: 1}),
    "nothing in it": batch(count=0),
}


def _write_cifar10(folder: Path, content: bytes) -> None:
    base = folder / "cifar-10-batches-py"
    base.mkdir(parents=True)
    good = pickle.dumps(batch(), 2)
    for number in range(1, 6):
        (base / f"data_batch_{number}").write_bytes(good)
    (base / "test_batch").write_bytes(content)


def _cifar10_special() -> Mapping[str, Make]:
    contents = {f"bomb: {name}": content for name, content in _BOMBS.items()}
    contents |= {f"odd: {name}": pickle.dumps(content, 2) for name, content in _ODD_BATCHES.items()}
    contents |= {f"other: {type(value).__name__}": pickle.dumps(value, 2) for value in (1, "x", [1], None, (1,))}
    contents |= {"keys that are numbers": pickle.dumps({1: 2, None: 3, (1, 2): 4}, 2)}
    return {name: _cifar10_with(content) for name, content in contents.items()}


def _cifar10_with(content: bytes) -> Make:
    return lambda folder, randomness: _write_cifar10(folder, content)


def _cifar10_chance(folder: Path, randomness: Random) -> None:
    changes = {randomness.choice(("data", "labels")): randomness.choice(NASTY)} if randomness.random() < 0.3 else {}
    content = pickle.dumps(batch(**changes), randomness.choice((0, 1, 2, 4, 5)))
    _write_cifar10(folder, content if changes else spoil(content, randomness))


def _write_cifar100(folder: Path, train: bytes, meta: bytes) -> None:
    base = folder / "cifar-100-python"
    base.mkdir(parents=True)
    for name, content in (("train", train), ("test", pickle.dumps(batch(key="fine_labels"), 2)), ("meta", meta)):
        (base / name).write_bytes(content)


def _cifar100_special() -> Mapping[str, Make]:
    """Hostile pickles: they are made anew for every folder, since they name a place in it."""

    def attack(name: str, place: str) -> Make:
        def make(folder: Path, randomness: Random) -> None:
            content = hostile_pickles(folder)[name]
            good, meta = pickle.dumps(batch(key="fine_labels"), 2), pickle.dumps({"fine_label_names": ["a"] * 4}, 2)
            _write_cifar100(folder, *((content, meta) if place == "train" else (good, content)))

        return make

    found = {
        f"hostile {place}: {name}": attack(name, place)
        for name in hostile_pickles(Path("nowhere"))
        for place in ("train", "meta")
    }
    for name, names in {"none": [], "numbers": [1, 2], "text": "abc", "bytes": [b"\xff"] * 4, "dictionary": {}}.items():
        content = pickle.dumps({"fine_label_names": names}, 2)
        found[f"names: {name}"] = partial(_cifar100_chance, meta=content)
    return found


def _cifar100_chance(folder: Path, randomness: Random, meta: bytes | None = None) -> None:
    train, names = pickle.dumps(batch(key="fine_labels"), 2), pickle.dumps({"fine_label_names": list("abcd")}, 2)
    if meta is None and randomness.random() < 0.5:
        meta = spoil(names, randomness)
    elif meta is None:
        train = spoil(train, randomness)
    _write_cifar100(folder, train, meta or names)


def readers() -> list[Reader]:
    def command(folder: Path) -> list[str]:
        """Splits that no data set allows: nothing is learned even if the data are fine."""
        words = ["run", "cifar10-5t", "--budget", "smoke", "--data", str(folder), "--out", str(folder / "run")]
        return [*words, "--set", "data.classes_per_task=7"]

    return [
        Reader("IDX", _plain_special, partial(_idx_chance, bytes), partial(load, "notmnist")),
        Reader("IDX, gzipped", _gzip_special, partial(_idx_chance, gzip.compress), partial(load, "notmnist")),
        Reader("CIFAR-10 pickles", _cifar10_special, _cifar10_chance, partial(load, "cifar10"), command),
        Reader("CIFAR-100, hostile pickles", _cifar100_special, _cifar100_chance, partial(load, "cifar100")),
    ]
