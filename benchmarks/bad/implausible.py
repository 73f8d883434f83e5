"""Model files that are consistent, with a correct checksum, but implausible: sizes, settings, names, values."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY
from benchmarks.bad.models import Parts, learned
from benchmarks.bad.nasty_names import NAMES, is_safe
from clom.errors import UserError
from clom.methods.families.base import LearnedTask, Method
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.task_record import TaskRecord, now
from clom.methods.registry import method_class
from clom.nets import AdapterSettings, NetSettings, PooledConvSettings, ResNet18Settings
from clom.photos.forget import forget
from clom.photos.predict import Predictor
from clom.photos.presets import RECIPES
from clom.photos.verify import verify
from clom.serve.answers.active_model import load_active_model
from clom.settings import flatten, set_dotted
from clom.storage.describe import describe
from clom.storage.model_file import load_model, save_model
from clom.storage.tensors import read_tensors, to_bytes

_FILE, _PHOTO = "bad.model", "photo.png"
_ADAPTER = AdapterSettings(weights="random", width=0.03, hidden=8)
_SIDE = 32


def _taught(name: str, net: NetSettings, side: int = _SIDE) -> Method:
    """A photo model as learning leaves it, with two tasks and their records; only that it learned nothing."""
    maker = method_class(name)
    recipe = RECIPES.get((name, "efficientnet-lite0"), {})
    method = maker(net, maker.settings_type.model_validate(recipe), (3, side, side), 0)
    for number in range(2):
        record = TaskRecord(
            learned=now(),
            images=(4, 4),
            validation_images=(1, 1),
            accuracy=1.0,
            task_logit_scale=1.0,
            belonging=(0.1, 0.2),
            fingerprint="0" * 64,
        )
        method.open_task(LearnedTask(f"task {number}", (f"a{number}", f"b{number}"), record))
    return method.eval()


def _parts(method: Method, folder: Path) -> Parts:
    save_model(folder / _FILE, method)
    tensors, header = read_tensors(folder / _FILE)
    return {name: value.clone() for name, value in tensors.items()}, header


@cache
def _base(name: str) -> Parts:
    if name == "digits":
        return learned()
    with tempfile.TemporaryDirectory() as folder:
        return _parts(_taught(name, _ADAPTER), Path(folder))


BASES = ("clom", "ncm", "slda", "digits")


def _write(folder: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any], header: dict[str, str]) -> None:
    (folder / _FILE).write_bytes(to_bytes(tensors, header | {"description": json.dumps(description)}))


def _changed(
    base: str,
    change: Callable[[dict[str, Any]], object] = lambda description: None,
    factor: float = 1.0,
    only: str = "",
) -> Make:
    """A sound file with another description, or with finite tensors that are multiplied by a factor."""

    def make(folder: Path, randomness: Random) -> None:
        tensors, header = _base(base)
        description = json.loads(header["description"])
        change(description)
        _write(folder, {name: _times(value, factor if only in name else 1.0) for name, value in tensors.items()},
               description, header)  # fmt: skip

    return make


def _times(value: Tensor, factor: float) -> Tensor:
    if factor == 1.0 or not value.is_floating_point():
        return value
    return (value.double() * factor).clamp(-3e38, 3e38).to(value.dtype)


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda description: set_dotted(description, name, value)


def _named(*, task: str | None = None, class_name: str | None = None) -> Callable[[dict[str, Any]], None]:
    """Another name for the second task, or for its first class."""

    def change(description: dict[str, Any]) -> None:
        if task is not None:
            description["tasks"][1]["name"] = task
        if class_name is not None:
            description["tasks"][1]["class_names"][0] = class_name

    return change


def _record(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda description: description["tasks"][1]["record"].update(values)


def _network(net: NetSettings, side: int) -> Make:
    """A file whose tensors fit its description, of a network that needs far more than the file for one image."""
    return lambda folder, _: save_model(folder / _FILE, _taught("clom", net, side))


def _stored(folder: Path, _: Random) -> None:
    """A file with images, which forgetting looks at all together."""
    method = _taught("clom", PooledConvSettings(channels=(8, 8, 8), hidden=4), 512)
    assert isinstance(method, MaskedMethod)
    for task in range(2):
        method.memory.add(task, torch.zeros(20, 3, 512, 512, dtype=torch.uint8), torch.arange(20) % 2)
    save_model(folder / _FILE, method)


def _special() -> Mapping[str, Make]:
    made: dict[str, Make] = {}
    for base in BASES:
        for shape in (
            [3, 4096, 4096],
            [3, 1025, 1025],
            [3, 1024, 1024],
            [5, 32, 32],
            [2, 8, 8],
            [1, 9, 9],
            [3, 1, 1],
        ):
            made[f"{base}: image shape {shape}"] = _changed(base, _set("image_shape", shape))
        for factor in (1e10, 1e20, 1e30, 1e38, -1e38):
            made[f"{base}: every weight times {factor}"] = _changed(base, factor=factor)
        made[f"{base}: one task twice"] = _changed(base, _named(task="task 0"))
        made[f"{base}: one class twice"] = _changed(base, _named(class_name="a0"))
        made[f"{base}: two classes alike"] = _changed(base, _named(class_name="b1"))
        for name in NAMES:
            made[f"{base}: a task called {name!r:.40}"] = _changed(base, _named(task=name))
            made[f"{base}: a class called {name!r:.40}"] = _changed(base, _named(class_name=name))
    for solver in ("exact", "sgd", "paper"):
        change = _set("settings.memory_fit", {"solver": solver, "iterations": 10**9, "batch": 10**9, "lr": 1e300})
        made[f"busy solver {solver}"] = _changed("digits", change)
    for key in ("logit_scale", "task_logit_scale", "accuracy"):
        for value in (1e300, 1e-300, -1, 0, "x"):
            made[f"{key} {value}"] = _changed("clom", _record(**{key: value}))
    made["thresholds beyond"] = _changed("clom", _record(belonging=[-1e308, 1e308]))
    made["a day in the year 9999"] = _changed("clom", _record(learned="9999-12-31T23:59:59Z"))
    made["wide at 512 pixels"] = _network(PooledConvSettings(channels=(3000, 1, 1), hidden=2), 512)
    made["slow at 256 pixels"] = _network(PooledConvSettings(channels=(64, 1500, 8), hidden=2), 256)
    made["residual at 1024 pixels"] = _network(ResNet18Settings(width=8), 1024)
    made["stored images of 512 pixels"] = _stored
    made["a pipe"] = lambda folder, _: os.mkfifo(folder / _FILE)
    made["a device"] = lambda folder, _: (folder / _FILE).symlink_to("/dev/zero")
    made["a link to itself"] = lambda folder, _: (folder / _FILE).symlink_to(folder / _FILE)
    return made


def _chance(folder: Path, randomness: Random) -> None:
    """One number of the description or of its settings, or the scale of one tensor, is another."""
    base = randomness.choice(BASES)
    tensors, header = _base(base)
    description = json.loads(header["description"])
    if randomness.random() < 0.7:
        part = randomness.choice(["net", "settings", "settings"])
        flat = flatten(description[part])
        name = randomness.choice(sorted(flat) or ["surprise"])
        extremes = [0, 1, 3, 50, 10**4, 10**7, 2**31, 10**12, 1e-300, 1e30, 1e300]
        set_dotted(description, f"{part}.{name}", randomness.choice([*extremes, *extremes, *NASTY]))
        _write(folder, tensors, description, header)
        return
    name = randomness.choice(sorted(tensors))
    factor = 10.0 ** randomness.uniform(5, 45)
    _changed(base, factor=factor, only=name)(folder, randomness)


def _use(folder: Path) -> None:
    """Everything that commands do with a model: what is shown must be safe, and what is answered must be finite."""
    path = folder / _FILE
    refusals = [_refusal(action, path) for action in (_describe, _answer, _serve, _verify, _forget)]
    for refusal in filter(None, refusals):
        raise UserError(refusal)


def _refusal(action: Callable[[Path], None], path: Path) -> str:
    try:
        action(path)
    except UserError as problem:
        return str(problem)
    return ""


def _describe(path: Path) -> None:
    for task in describe(path)["tasks"]:
        assert all(is_safe(name) for name in (task["name"], *task["classes"]))


def _answer(path: Path) -> None:
    predictor = Predictor(load_model(path))
    image = torch.arange(3 * _SIDE * _SIDE, dtype=torch.int32).to(torch.uint8).view(1, 3, _SIDE, _SIDE)
    for task in (None, *(task.name for task in predictor.method.tasks)):
        (answer,) = predictor(image, task)
        assert all(math.isfinite(guess.confidence) for guess in answer.guesses)
        json.dumps(answer.to_json(), allow_nan=False)


def _serve(path: Path) -> None:
    load_active_model(path, torch.device("cpu"))


def _verify(path: Path) -> None:
    verify(path)


def _forget(path: Path) -> None:
    forget(path, load_model(path).tasks[0].name)


def _command(folder: Path) -> list[str]:
    Image.new("RGB", (_SIDE, _SIDE), (200, 30, 30)).save(folder / _PHOTO)
    return ["predict", str(folder / _FILE), str(folder / _PHOTO)]


def readers() -> list[Reader]:
    return [Reader("implausible models", _special, _chance, _use, _command)]
