"""Bad checkpoints in the layout of the paper's authors."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil
from benchmarks.bad.payload import hostile, hostile_pickles
from benchmarks.bad.places import in_folder, zip_of
from clom.storage.authors import read_authors

_FILE = "last.model"


@cache
def good() -> dict[str, Tensor]:
    """Two tasks of two classes in a small network of theirs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (n_out, n_in, kernel) in enumerate([(4, 3, 3), (6, 4, 3), (8, 6, 2)], start=1):
        shapes |= {f"conv{number}.weight": (n_out, n_in, kernel, kernel), f"conv{number}.bias": (n_out,)}
    shapes |= {"fc1.weight": (12, 32), "fc1.bias": (12,), "simclr_layer.fc1.weight": (12, 12)}
    shapes |= {"simclr_layer.fc1.bias": (12,)}
    for task in range(2):
        shapes |= {f"ec{number}.{task}": (1, size) for number, size in enumerate((4, 6, 8, 12), start=1)}
        shapes |= {f"joint_distribution_layer.{task}.weight": (8, 12), f"joint_distribution_layer.{task}.bias": (8,)}
        shapes |= {f"simclr_layer.last.{task}.weight": (5, 12), f"simclr_layer.last.{task}.bias": (5,)}
        shapes |= {f"simclr_layer.ec.{task}": (1, 12)}
    randomness = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=randomness) for name, shape in shapes.items()}


def saved(content: Any, modern: bool = True) -> bytes:
    target = io.BytesIO()
    torch.save(content, target, _use_new_zipfile_serialization=modern)
    return target.getvalue()


def _odd_tensors() -> dict[str, Tensor]:
    endless = torch.zeros(1)
    return {
        "of no dimensions": torch.tensor(1.0),
        "of no rows": torch.zeros(0, 3, 3, 3),
        "of 10^9 rows that are one": endless.expand(10**9, 3),
        "of 10^5 rows that are one": endless.expand(10**5, 3, 3, 3),
        "of 10^7 rows that are one": endless.expand(10**7, 1),
        "not numbers": torch.full((4, 3, 3, 3), float("nan")),
        "infinite": torch.full((4, 3, 3, 3), float("inf")),
        "of integers": torch.zeros(4, 3, 3, 3, dtype=torch.int64),
        "complex": torch.zeros(4, 3, 3, 3, dtype=torch.complex64),
        "sparse": torch.zeros(4, 27).to_sparse(),
        "without storage": torch.empty(10**9, 3, device="meta"),
        "of truth": torch.zeros(4, 3, 3, 3, dtype=torch.bool),
        "of halves": torch.zeros(4, 3, 3, 3, dtype=torch.float16),
        "turned": torch.zeros(3, 3, 3, 4).transpose(0, 3),
        "of another shape": torch.zeros(2, 2),
    }


_PLACES = ("conv1.weight", "fc1.weight", "joint_distribution_layer.0.weight", "ec1.0", "simclr_layer.fc1.weight")


def _special() -> Mapping[str, Make]:
    contents: dict[str, Any] = {
        f"{place} {kind}": saved(good() | {place: value})
        for place in _PLACES[:3]
        for kind, value in _odd_tensors().items()
    }
    whole = saved(good())
    contents |= {f"cut after {length} bytes": whole[:length] for length in range(0, len(whole), 2048)}
    for name, value in {
        "a list": [1],
        "nothing": None,
        "numbers": {"conv1.weight": 3},
        "empty": {},
        "a resnet in name": {"layer1.0.conv1.weight": torch.zeros(1), "conv1.weight": torch.zeros(10**6)},
        "a task of number 10^9": good() | {"ec1.999999999": torch.zeros(1, 4)},
        "keys that are numbers": {1: torch.zeros(1)},
        "two prefixes": {f"module.module.{name}": value for name, value in good().items()},
        "deep": _deep(50),
    }.items():
        contents[name] = saved(value)
        contents[f"{name}, old layout"] = saved(value, modern=False)
    contents["old layout"] = saved(good(), modern=False)
    contents["a zip of nothing"] = zip_of({})
    contents["a zip of a pickle"] = zip_of({"archive/data.pkl": b"\x80\x02}."})
    contents["a zip of bombs"] = zip_of({"archive/data.pkl": bytes(200_000_000)})
    return {
        **{name: in_folder(_FILE, content) for name, content in contents.items()},
        **{f"hostile {name}": _hostile(name) for name in hostile_pickles(Path("nowhere"))},
        **{f"hostile zip {name}": _hostile_zip(name) for name in ("os.mkdir", "os.system", "eval", "exec")},
        **{f"masks {number}": _companion("masks", value) for number, value in enumerate(_COMPANIONS)},
        **{f"calibration {number}": _companion("calibration", value) for number, value in enumerate(_COMPANIONS)},
        "a pipe": lambda folder, _: os.mkfifo(folder / _FILE),
        "a folder": lambda folder, _: (folder / _FILE).mkdir(),
        "absent": lambda folder, _: None,
    }


_COMPANIONS: tuple[Any, ...] = (
    *(None, 3, [], {}, {"p_mask": 3}, {"p_mask": {}}, {"p_mask": {"a": torch.zeros(3, dtype=torch.complex64)}}),
    *({"w": [1.0, 2.0], "b": [0.0, 0.0]}, {"w": [float("nan"), 1], "b": [0, 0]}, {"w": "12", "b": "34"}),
    *({"w": torch.zeros(()), "b": 1}, {"w": [10**400, 1], "b": [0, 0]}, {"w": [1], "b": [torch.zeros(3)]}),
    {"w": torch.zeros(1).expand(10**9), "b": torch.zeros(1).expand(10**9)},
    {"p_mask": {"a": torch.zeros(1).expand(10**10)}},
)


def _deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def _hostile(name: str) -> Make:
    return lambda folder, _: (folder / _FILE).write_bytes(hostile_pickles(folder)[name])


def _hostile_zip(name: str) -> Make:
    return lambda folder, _: (folder / _FILE).write_bytes(saved(good() | {"conv1.weight": hostile(folder)[name]}))


def _companion(name: str, value: Any) -> Make:
    def make(folder: Path, randomness: Random) -> None:
        (folder / _FILE).write_bytes(saved(good()))
        (folder / name).write_bytes(saved(value))

    return make


def _chance(folder: Path, randomness: Random) -> None:
    content: dict[str, Any] = dict(good())
    way = randomness.random()
    if way < 0.5:
        odd = _odd_tensors()
        content[randomness.choice(sorted(content))] = odd[randomness.choice(sorted(odd))]
    elif way < 0.6:
        content[randomness.choice(sorted(content))] = randomness.choice(NASTY)
    elif way < 0.7:
        del content[randomness.choice(sorted(content))]
    whole = saved(content, randomness.random() < 0.7)
    (folder / _FILE).write_bytes(whole if way < 0.7 else spoil(whole, randomness))


def _read(folder: Path) -> None:
    masks, calibration = (path if (path := folder / name).exists() else None for name in ("masks", "calibration"))
    method = read_authors(folder / _FILE, masks, calibration).method
    method.blocks(torch.zeros(1, *method.image_shape, dtype=torch.uint8))


def readers() -> list[Reader]:
    def command(folder: Path) -> list[str]:
        return ["import-authors", str(folder / _FILE), "--out", str(folder / "out.safetensors")]

    return [Reader("authors' checkpoints", _special, _chance, _read, command)]
