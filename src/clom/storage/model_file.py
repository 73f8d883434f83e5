"""A model as one file: safetensors with a JSON description. Reading it runs no code from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from clom.errors import UserError
from clom.files import write_atomically
from clom.methods.families.base import LearnedTask, Method, place
from clom.methods.families.task_record import TaskRecord, check_new_task
from clom.methods.registry import METHODS, method_class
from clom.nets.networks.kinds import read_net_settings
from clom.nets.networks.registry import NETS
from clom.nets.size_limit import SizeLimit
from clom.plugins import origins, require
from clom.storage.checks import check_answers, check_description, check_values
from clom.storage.tensors import read_tensors, to_bytes

FORMAT, VERSION = "clom-model", (1, 1)
"""Major and minor version of the files that are written (docs/model-files.md). Every file with the same major version
and this or an earlier minor version can be read."""
LONGEST_DESCRIPTION = 20_000_000
"""In characters: enough for a million held-out photos."""
CHECKSUM = "sha256"


def save_model(path: Path, method: Method) -> None:
    """Write the whole method to `path` atomically, replacing an existing file."""
    description: dict[str, Any] = {
        "method": method.name,
        "net": method.net_settings.model_dump(mode="json"),
        "settings": method.settings.model_dump(mode="json"),
        "image_shape": list(method.image_shape),
        "seed": method.seed,
        "tasks": [_described(task) for task in method.tasks],
    }
    if brought := origins({METHODS: method.name, NETS: method.net_settings.kind}):
        description["plugins"] = brought
    header = {"format": FORMAT, "version": _version_text(), "description": json.dumps(description)}
    write_atomically(path, to_bytes(method.state_dict(), header))


def load_model(path: Path) -> Method:
    """The saved method, ready for inference or further training."""
    tensors, header = read_tensors(path)
    if header.get("format") != FORMAT:
        raise UserError(f"{path} is not a model of this program: its header does not name the format '{FORMAT}'.")
    version = header.get("version", "")
    if not _can_read(version):
        raise UserError(
            f"{path} has format version {version[:20] or 'unknown'}; this program reads up to {_version_text()}. "
            "Update the program."
        )
    if extra := header.keys() - {"format", "version", "description"}:
        raise UserError(f"{path} is damaged: its header has unknown entries ({', '.join(sorted(extra))}).")
    if len(header.get("description", "")) > LONGEST_DESCRIPTION:
        raise UserError(f"{path} is damaged: its description is longer than {LONGEST_DESCRIPTION} characters.")
    try:
        description = check_description(json.loads(header["description"]))
    except Exception as problem:  # the description can be anything
        raise _damaged(path, problem) from problem
    noted = description.get("plugins", {})
    require({METHODS: description["method"], NETS: description["net"].get("kind")}, noted, str(path))
    try:
        method = _rebuild(description, SizeLimit.for_file(tensors))
        method.load_state_dict(tensors)
        check_values(method, tensors)
        place(method, torch.device("cpu"))
        check_answers(method.eval())
    except Exception as problem:  # a wrong description can raise anything
        raise _damaged(path, problem, noted) from problem
    return method


def _version_text() -> str:
    return ".".join(map(str, VERSION))


def _can_read(version: str) -> bool:
    """Files of version 1.0 say `1`."""
    found = re.fullmatch(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?", version)
    return found is not None and int(found[1]) == VERSION[0] and int(found[2] or 0) <= VERSION[1]


def _damaged(path: Path, problem: Exception, plugins: Mapping[str, str] | None = None) -> UserError:
    text = str(problem)
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    lines = [line.strip(" \t.:") for line in text.splitlines() if "Error(s) in loading" not in line]
    why = next(filter(None, lines), type(problem).__name__)[:300]
    if made := ", ".join(f"the {kind} of {origin}" for kind, origin in (plugins or {}).items() if origin.isprintable()):
        return UserError(f"{path} does not match the installed code ({why}). It was saved with {made}.")
    return UserError(f"{path} is damaged: its description and its tensors do not match ({why}).")


def _described(task: LearnedTask) -> dict[str, Any]:
    described: dict[str, Any] = {"name": task.name, "class_names": list(task.class_names)}
    if task.units:
        described["units"] = dict(task.units)
    if task.merged:
        described["merged"] = dict(task.merged)
    if task.record is not None:
        described["record"] = task.record.model_dump(mode="json")
    return described


def _rebuild(description: dict[str, Any], limit: SizeLimit) -> Method:
    if description["method"] not in METHODS:
        raise ValueError(f"unknown method '{description['method']}'")
    maker = method_class(description["method"])
    net = read_net_settings(description["net"])
    settings = maker.settings_type.model_validate(description["settings"])
    with limit:
        limit.holder = method = maker(net, settings, description["image_shape"], description["seed"])
        for task in description["tasks"]:
            record = TaskRecord.model_validate(task["record"]) if "record" in task else None
            units, merged = task.get("units", {}), task.get("merged", {})
            learned = LearnedTask(task["name"], tuple(task["class_names"]), record, units, merged)
            if record and {len(record.images), len(record.validation_images)} != {learned.n_classes}:
                raise ValueError(f"the record of task '{learned.name}' does not match its classes")
            check_new_task(method.tasks, learned.name, learned.class_names)
            method.open_task(learned)
    return method
