"""Bad model files."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil, spoil_value
from benchmarks.bad.headers import lying_headers, relabelled
from benchmarks.bad.payload import hostile, hostile_pickles
from benchmarks.bad.places import in_folder
from clom.data.formats import read_digits
from clom.data.stream import Stream, split
from clom.experiments.config import RunConfig, resolve
from clom.methods.clom import Clom
from clom.methods.families.base import LearnedTask
from clom.methods.families.masked import MaskedMethod
from clom.methods.registry import BUILT_IN
from clom.storage.model_file import load_model, save_model
from clom.storage.tensors import read_tensors

_FILE = "bad.safetensors"
SMALL = {"net.channels": [2, 2, 3], "net.hidden": 6}
_BACKBONE = {"net.weights": "random", "net.width": 0.03}
Parts = tuple[dict[str, Tensor], dict[str, str]]


def _saved(method: Any) -> Parts:
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / _FILE, method)
        tensors, header = read_tensors(Path(folder) / _FILE)
        return {name: value.clone() for name, value in tensors.items()}, header


def as_if_learned(config: RunConfig, stream: Stream) -> Clom:
    """A model with room for all tasks and a memory of them, as learning leaves it; only that it learned nothing."""
    method = config.make_method(stream.image_shape)
    assert isinstance(method, Clom)
    for number, task in enumerate(stream):
        method.open_task(LearnedTask(task.name, task.class_names))
        method.memory.add(number, task.validation.pixels, task.validation.labels)
    return method


@cache
def learned() -> Parts:
    """Of a few kilobytes."""
    stream = split(read_digits(), [2, 2], train_per_class=6, test_per_class=2)
    return _saved(as_if_learned(resolve("digits-5t", "clom", "smoke", 0, SMALL), stream))


@cache
def opened(name: str) -> Parts:
    """A model of any system with two tasks, not learned."""
    overrides = _BACKBONE if name in ("ncm", "slda") else {}
    method = resolve("digits-5t", name, "smoke", 0, overrides).make_method((1, 8, 8))
    for number in range(2):
        method.open_task(LearnedTask(f"task {number}", (f"a{number}", f"b{number}")))
    return _saved(method)


def packed(parts: Parts) -> bytes:
    content: bytes = to_bytes(parts[0], metadata=parts[1])
    return content


# --- other values in a sound file ------------------------------------------------------------------------------------


def described(parts: Parts, change: Callable[[dict[str, Any]], Any]) -> Parts:
    """The same tensors under another description."""
    description = change(json.loads(parts[1]["description"]))
    return parts[0], parts[1] | {"description": json.dumps(description)}


def _with(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda description: description | values


def _net(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda description: description | {"net": description["net"] | values}


def _larger(description: dict[str, Any]) -> dict[str, Any]:
    """Every number of the network a million times as large."""

    def grown(value: Any) -> Any:
        if isinstance(value, list):
            return [grown(inner) for inner in value]
        return value * 10**6 if type(value) is int else value

    return description | {"net": {name: grown(value) for name, value in description["net"].items()}}


def _many_classes(count: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return _with(tasks=[{"name": "a", "class_names": [str(number) for number in range(count)]}])


_DESCRIPTIONS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "hidden 10^12": _net(hidden=10**12),
    "hidden 10^30": _net(hidden=10**30),
    "hidden 10^8": _net(hidden=10**8),
    "channels 10^5": _net(channels=[10**5] * 3),
    "kernel 10^4": _net(kernels=[10**4, 1, 1], paddings=[10**4, 0, 0]),
    "padding 10^5": _net(paddings=[10**5, 0, 0]),
    "dropout 2": _net(dropout=[2, 2]),
    "another kind": _net(kind="resnet18"),
    "images of 10^6 pixels": _with(image_shape=[1, 10**6, 10**6]),
    "images of 10^20 pixels": _with(image_shape=[1, 10**20, 10**20]),
    "image sides as floats": _with(image_shape=[1.5, 8.0, 8.0]),
    "image sides negative": _with(image_shape=[1, -8, -8]),
    "channels of images 99": _with(image_shape=[99, 8, 8]),
    "seed a text": _with(seed="x"),
    "seed beyond": _with(seed=10**40),
    "seed nothing": _with(seed=None),
    "no tasks": _with(tasks=[]),
    "a hundred thousand tasks": _with(tasks=[{"name": "a", "class_names": ["x"]}] * 10**5),
    "tasks without classes": _with(tasks=[{"name": "a", "class_names": []}] * 2),
    "a million classes": _many_classes(10**6),
    "class names numbers": _with(tasks=[{"name": 1, "class_names": [1, 2]}] * 2),
    "class names one text": _with(tasks=[{"name": "a", "class_names": "ab"}] * 2),
    "class names lists": _with(tasks=[{"name": "a", "class_names": [[1], [2]]}] * 2),
    "method a path": _with(method="../../os"),
    "method of another system": _with(method="hat"),
    "method of a variant": _with(method="clom-no-ood"),
    "method joint": _with(method="joint"),
    "settings empty": _with(settings={}),
    "many rotations": lambda d: d | {"settings": d["settings"] | {"learning": {"rotations": 4 * 10**9}}},
    "nothing": lambda d: {},
    "a list": lambda d: [d],
    "more than known": _with(surprise=1),
}


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def _with_tensor(parts: Parts, name: str, value: Tensor) -> bytes:
    return packed((parts[0] | {name: value}, parts[1]))


def _values() -> dict[str, bytes]:
    base = learned()
    tensors, header = base
    found = {f"description: {name}": packed(described(base, change)) for name, change in _DESCRIPTIONS.items()}
    for version in ("0", "2", "99", "", "1.0", "-1", "x", "9" * 5000, "١"):
        found[f"version {version[:5]}"] = packed((tensors, header | {"version": version}))
    found["description nested"] = packed((tensors, header | {"description": _nested(100_000)}))
    found["description cut"] = packed((tensors, header | {"description": header["description"][:-5]}))
    found["description a huge number"] = packed((tensors, header | {"description": "9" * 10_000}))
    found["no header"] = to_bytes(tensors)
    floats = [name for name, value in tensors.items() if value.is_floating_point() and value.numel()]
    for number, name in enumerate(floats[:: max(1, len(floats) // 8)]):
        odd = tensors[name].clone().flatten()
        odd[-1] = (float("nan"), float("inf"), float("-inf"))[number % 3]
        found[f"{odd[-1].item()} in {name}"] = _with_tensor(base, name, odd.view_as(tensors[name]))
    first = floats[0]
    large = {name: torch.full_like(value, 1e38) if name in floats else value for name, value in tensors.items()}
    found["every weight 1e38"] = packed((large, header))
    for kind in (torch.int32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.complex64):
        found[f"{kind} weights"] = _with_tensor(base, first, torch.zeros(tensors[first].shape, dtype=kind))
    found["one byte floats"] = _with_tensor(base, first, tensors[first].to(torch.float8_e4m3fn))
    found["a tensor less"] = packed(({name: value for name, value in tensors.items() if name != first}, header))
    found["a tensor more"] = _with_tensor(base, "surprise", torch.zeros(3))
    found["another shape"] = _with_tensor(base, first, torch.zeros(3, 3))
    found["no numbers"] = packed(({}, header))
    for name in ("memory.labels", "memory.tasks"):
        value = tensors[name]
        found[f"{name} beyond"] = _with_tensor(base, name, torch.full_like(value, 10**9))
        found[f"{name} negative"] = _with_tensor(base, name, torch.full_like(value, -5))
        found[f"{name} as floats"] = _with_tensor(base, name, value.float())
        found[f"{name} too short"] = _with_tensor(base, name, value[:1])
        found[f"{name} in two dimensions"] = _with_tensor(base, name, value[:, None])
    found["memory.pixels of another size"] = _with_tensor(base, "memory.pixels", torch.zeros(4, 1, 9, 9).byte())
    return found


def _special() -> Mapping[str, Make]:
    content = packed(learned())
    contents = {f"cut after {length} bytes": content[:length] for length in range(0, len(content), 1024)}
    contents |= {"a byte more": content + b"x", "twice": content * 2}
    contents |= lying_headers(content) | _values()
    return {
        **{name: in_folder(_FILE, content) for name, content in contents.items()},
        **{f"{name}, a million times larger": _grown(name) for name in BUILT_IN},
        **{f"hostile {name}": _hostile(name) for name in hostile_pickles(Path("nowhere"))},
        "hostile checkpoint": lambda folder, _: torch.save(hostile(folder)["os.mkdir"], folder / _FILE),
        "a pipe": lambda folder, _: os.mkfifo(folder / _FILE),
        "a folder": lambda folder, _: (folder / _FILE).mkdir(),
        "nothing": lambda folder, _: None,
        "a pickle": in_folder(_FILE, pickle.dumps({"x": 1})),
    }


def _grown(name: str) -> Make:
    return lambda folder, _: (folder / _FILE).write_bytes(packed(described(opened(name), _larger)))


def _hostile(name: str) -> Make:
    return lambda folder, _: (folder / _FILE).write_bytes(hostile_pickles(folder)[name])


def _chance(folder: Path, randomness: Random) -> None:
    base = learned() if randomness.random() < 0.7 else opened(randomness.choice(sorted(BUILT_IN)))
    content = packed(base)
    way = randomness.random()
    if way < 0.4:
        content = spoil(content, randomness)
    elif way < 0.7:
        content = packed(described(base, lambda description: spoil_value(description, randomness)))
    elif way < 0.85:
        content = relabelled(content, lambda header: spoil_value(header, randomness))
    else:
        name = randomness.choice(sorted(base[0]))
        filling = randomness.choice([value for value in NASTY if type(value) in (int, float) and abs(value) < 2**62])
        content = _with_tensor(base, name, torch.full(base[0][name].shape, filling))
    (folder / _FILE).write_bytes(content)


def _load(folder: Path) -> None:
    method = load_model(folder / _FILE)
    if isinstance(method, MaskedMethod) and max(method.image_shape) <= 64:
        blocks = method.blocks(torch.zeros(2, *method.image_shape, dtype=torch.uint8))
        assert [block.shape[1] for block in blocks] == [task.n_classes for task in method.tasks]
        method.calibrations()


def readers() -> list[Reader]:
    return [Reader("model files", _special, _chance, _load)]
