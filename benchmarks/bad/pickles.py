"""Bad CIFAR pickles: bombs, odd contents, and programs that would run."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil
from benchmarks.bad.payload import hostile_pickles
from benchmarks.bad.places import load


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
        Reader("CIFAR-10 pickles", _cifar10_special, _cifar10_chance, partial(load, "cifar10"), command),
        Reader("CIFAR-100, hostile pickles", _cifar100_special, _cifar100_chance, partial(load, "cifar100")),
    ]
