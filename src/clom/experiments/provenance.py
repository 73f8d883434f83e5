"""The provenance of a run: machine, versions, data and command, written to `environment.json`.

Tested by tests/experiments/test_run_resume.py.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from clom import machine
from clom.data.images import Images
from clom.data.stream import Stream
from clom.errors import DataError, UserError
from clom.experiments.config import RunConfig
from clom.files import read_json, write_json
from clom.launch import read_launch

_RELEVANT = (
    "system",
    "processor",
    "threads",
    "processes",
    "gpu",
    "device",
    "precision",
    "compile",
    "python",
    "packages",
    "commit",
    "deterministic",
)
"""What bit-identical results depend on."""


def record(
    folder: Path,
    config: RunConfig,
    stream: Stream,
    data: Path | None,
    device: str = "cpu",
    precision: str = "float32",
    compile: bool = False,
    allowance: float | None = None,
) -> None:
    """Write `environment.json`. If a resumed run was started in another environment, that one is listed as well. A
    resumed run keeps its allowance unless another one is given."""
    path = folder / "environment.json"
    before = _read(path)
    if before:
        before.setdefault("compile", False)  # written by a version without torch.compile
    now = machine.describe() | {
        "device": device,
        "precision": precision,
        "compile": compile,
        "allowance": before.get("allowance") if allowance is None else allowance,
        "command": list(sys.argv),
        "processes": read_launch().size,
        "seed": config.seed,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "data": str(data.resolve()) if data else None,
        "data_sha256": data_digest(stream),
        "began": before.get("began", datetime.now(UTC).isoformat(timespec="seconds")),
        "sessions": before.get("sessions", 0) + 1,
    }
    known = before.get("data_sha256")
    if known not in (None, now["data_sha256"]):
        raise UserError(
            f"The run in {folder} was started with other images. Use the same data, or choose another folder with "
            "--out."
        )
    earlier = list(before.get("earlier", []))
    if before and any(before.get(name) != now[name] for name in _RELEVANT):
        earlier.append({name: before.get(name) for name in _RELEVANT})
    write_json(path, now | {"earlier": earlier})


def recorded(folder: Path) -> dict[str, Any]:
    """The `environment.json` of a run; empty if there is none."""
    return _read(folder / "environment.json")


def data_digest(stream: Stream) -> str:
    """SHA-256 of all images and labels of a stream, in order."""
    digest = hashlib.sha256()
    for images in _all_images(stream):
        digest.update(repr((tuple(images.pixels.shape), str(images.pixels.dtype))).encode())
        digest.update(images.pixels.flatten().numpy().data)
        digest.update(images.labels.numpy().data)
    return digest.hexdigest()


def _all_images(stream: Stream) -> Iterable[Images]:
    for task in stream:
        yield from (task.train, task.validation)
    yield from stream.tests


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except DataError:
        return {}  # only the record of an earlier attempt
