"""A model as one file: safetensors with the description as JSON. Reading it runs no code of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_safetensors
from torch import Tensor

from clom.errors import UserError
from clom.files import check_regular
from clom.methods.base import LearnedTask, Method, channels_last
from clom.methods.record import TaskRecord
from clom.methods.registry import METHODS, method_class
from clom.model.checks import check_description, check_numbers
from clom.nets import NetSettings
from clom.nets.allowance import Allowance

FORMAT, VERSION = "clom-model", 1
CHECKSUM = "sha256"


def save_model(path: Path, method: Method) -> None:
    """Write the whole method; whatever was at `path` is replaced in one piece or not at all."""
    description = {
        "method": method.name,
        "net": method.net_settings.model_dump(mode="json"),
        "settings": method.settings.model_dump(mode="json"),
        "image_shape": list(method.image_shape),
        "seed": method.seed,
        "tasks": [_described(task) for task in method.tasks],
    }
    header = {"format": FORMAT, "version": str(VERSION), "description": json.dumps(description)}
    write_safely(path, to_bytes(method.state_dict(), header))


def load_model(path: Path) -> Method:
    """The method as it was saved, ready to answer or to learn on."""
    tensors, header = read_tensors(path)
    if header.get("format") != FORMAT:
        raise UserError(f"{path} is not a model of this program: its header does not say '{FORMAT}'.")
    version = header.get("version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > VERSION:
        raise UserError(
            f"{path} has format version {version[:20] or 'unknown'}; this program reads up to {VERSION}. "
            "Update the program."
        )
    if strange := header.keys() - {"format", "version", "description"}:
        raise UserError(f"{path} is damaged: its header has entries that mean nothing ({', '.join(sorted(strange))}).")
    try:
        description = check_description(json.loads(header["description"]))
        method = _rebuild(description, Allowance.for_file(tensors))
        method.load_state_dict(tensors)
        check_numbers(method, tensors)
    except Exception as problem:  # a wrong description can lead anywhere
        lines = [line.strip(" \t.:") for line in str(problem).splitlines() if "Error(s) in loading" not in line]
        why = next(filter(None, lines), type(problem).__name__)[:300]
        raise UserError(f"{path} is damaged: its description and its numbers do not fit ({why}).") from problem
    channels_last(method)
    return method.eval()


def _described(task: LearnedTask) -> dict[str, Any]:
    described: dict[str, Any] = {"name": task.name, "class_names": list(task.class_names)}
    if task.record is not None:
        described["record"] = task.record.model_dump(mode="json")
    return described


def _rebuild(description: dict[str, Any], allowance: Allowance) -> Method:
    if description["method"] not in METHODS:
        raise ValueError(f"unknown method '{description['method']}'")
    maker = method_class(description["method"])
    net: NetSettings = TypeAdapter(NetSettings).validate_python(description["net"])
    settings = maker.settings_type.model_validate(description["settings"])
    with allowance:
        allowance.holder = method = maker(net, settings, description["image_shape"], description["seed"])
        for task in description["tasks"]:
            record = TaskRecord.model_validate(task["record"]) if "record" in task else None
            learned = LearnedTask(task["name"], tuple(task["class_names"]), record)
            if record and {len(record.images), len(record.validation_images)} != {learned.n_classes}:
                raise ValueError(f"the record of task '{learned.name}' is about other classes")
            method.open_task(learned)
    return method


def to_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """A safetensors file whose header holds a checksum of everything in it."""
    plain = {name: value.detach().contiguous() for name, value in tensors.items()}
    return as_safetensors(plain, metadata={**header, CHECKSUM: checksum(plain, header)})


def checksum(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Of all names, shapes, types, numbers and entries of the header, in whatever order."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the header of a safetensors file, which must be what was written."""
    tensors, header = _read(path)
    written = header.pop(CHECKSUM, None)
    if written is not None and written != checksum(tensors, header):
        raise UserError(f"{path} is damaged: its numbers are not those that were written (the checksum differs).")
    return tensors, header


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as problem:
        raise UserError(f"{path} cannot be read as a model file: {str(problem)[:300]}.") from None


def write_safely(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        problem.filename = problem.filename or str(path)  # a full disk does not say which file it had no room for
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path, then: str) -> Iterator[None]:
    """A disk that is full or may not be written to is the user's to mend: say where, and what to do `then`."""
    try:
        yield
    except OSError as problem:
        raise UserError(
            f"Cannot write {problem.filename or folder}: {problem.strerror or problem}. What was there before is "
            f"intact. {then}"
        ) from problem
