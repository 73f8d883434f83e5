"""What is needed to repeat a run besides its settings: where, with what, on which data, by which command.

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

_DECISIVE = (
    "system",
    "processor",
    "threads",
    "processes",
    "gpu",
    "device",
    "precision",
    "python",
    "packages",
    "commit",
    "deterministic",
)
"""What the last bits of a result depend on."""


def record(
    folder: Path, config: RunConfig, stream: Stream, data: Path | None, device: str = "cpu", precision: str = "float32"
) -> None:
    """Write `environment.json`. Where an interrupted run was begun elsewhere or otherwise, that is not forgotten."""
    path = folder / "environment.json"
    before = _read(path)
    now = machine.describe() | {
        "device": device,
        "precision": precision,
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
            f"The run in {folder} was begun with other images than these. Give it the same data, or choose another "
            "folder with --out."
        )
    earlier = list(before.get("earlier", []))
    if before and any(before.get(name) != now[name] for name in _DECISIVE):
        earlier.append({name: before.get(name) for name in _DECISIVE})
    write_json(path, now | {"earlier": earlier})


def recorded(folder: Path) -> dict[str, Any]:
    """What an interrupted run left of it; empty if nothing."""
    return _read(folder / "environment.json")


def data_digest(stream: Stream) -> str:
    """Of all images and labels of a stream, in order."""
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
        return {}  # it only tells about an earlier attempt
