"""A model as one file: safetensors with the description as JSON. Reading it runs no code of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from clom.errors import UserError
from clom.files import check_regular
from clom.methods.base import LearnedTask, Method, channels_last
from clom.methods.registry import METHODS, method_class
from clom.model.checks import check_description, check_numbers
from clom.nets import NetSettings
from clom.nets.allowance import Allowance

FORMAT, VERSION = "clom-model", 1


def save_model(path: Path, method: Method) -> None:
    """Write the whole method; whatever was at `path` is replaced in one piece or not at all."""
    description = {
        "method": method.name,
        "net": method.net_settings.model_dump(mode="json"),
        "settings": method.settings.model_dump(mode="json"),
        "image_shape": list(method.image_shape),
        "seed": method.seed,
        "tasks": [{"name": task.name, "class_names": list(task.class_names)} for task in method.tasks],
    }
    header = {"format": FORMAT, "version": str(VERSION), "description": json.dumps(description)}
    tensors = {name: value.detach().contiguous() for name, value in method.state_dict().items()}
    write_safely(path, to_bytes(tensors, metadata=header))


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


def _rebuild(description: dict[str, Any], allowance: Allowance) -> Method:
    if description["method"] not in METHODS:
        raise ValueError(f"unknown method '{description['method']}'")
    maker = method_class(description["method"])
    net: NetSettings = TypeAdapter(NetSettings).validate_python(description["net"])
    settings = maker.settings_type.model_validate(description["settings"])
    with allowance:
        allowance.holder = method = maker(net, settings, description["image_shape"], description["seed"])
        for task in description["tasks"]:
            method.open_task(LearnedTask(task["name"], tuple(task["class_names"])))
    return method


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the header of a safetensors file."""
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
    finally:
        temporary.unlink(missing_ok=True)
