"""Checkpoint files: torch's format with a checksum. Reading one runs no code from it.

Files are written atomically, and the last two of every phase are kept. The checksum detects any damage; the previous
file is then used.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from clom.data.stream import Task
from clom.errors import DataError
from clom.files import MAX_MODEL_BYTES, hidden_neighbour, read_bytes, write_atomically, writing
from clom.learning.context import Checkpoints, Snapshot
from clom.methods.families.base import Method
from clom.stopping import StopRequest
from clom.storage.tensors import checksum

MAGIC = b"clom checkpoint 1\n"
_DIGEST = hashlib.sha256().digest_size
_FILES_PER_PHASE = 2
_NAME = re.compile(r"task(\d+)-phase(\d+)-step(\d+)\.ckpt")

RESUME_HINT = "Once that is fixed, the same command resumes where it stopped."
SECONDS = 10.0
"""Default interval between checkpoints: the most that an interruption costs."""
MAX_TIME_SHARE = 0.01
"""Share of the time spent on checkpoints: the interval grows if saving is slow, ..."""
MAX_INTERVAL = 600.0
"""... but never beyond this."""


class Damaged(Exception):
    """A file does not contain what was written."""


class CheckpointFolder(Checkpoints):
    """The checkpoints of one task of a run.

    `belongs_to` identifies the run: checkpoints of another one are ignored. With `every` 0 each step is saved.
    """

    def __init__(
        self, folder: Path, task: int, belongs_to: str, every: float = SECONDS, stop: StopRequest | None = None
    ) -> None:
        self.folder, self.task, self.belongs_to, self.every = folder, task, belongs_to, every
        self.stop = stop or StopRequest()
        self.saving = 0.0
        """Seconds spent on saving."""
        self._spent_before = self._cpu_before = 0.0
        self._began = self._last = time.monotonic()
        self._cpu_began = time.process_time()
        self._interval = every
        self._pending: list[tuple[int, int, bytes]] = []

    @property
    def seconds(self) -> float:
        """Time spent on the task, including interrupted processes up to their last checkpoint."""
        return self._spent_before + time.monotonic() - self._began

    @property
    def cpu_seconds(self) -> float:
        """CPU time spent on the task, summed over all cores."""
        return self._cpu_before + time.process_time() - self._cpu_began

    def due(self) -> bool:
        return self.stop.requested or time.monotonic() - self._last >= self._interval

    def stop_if_requested(self) -> None:
        if self.stop.requested:
            self._write()
        self.stop.raise_if_requested()

    def save(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        spent = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        content = {"belongs_to": self.belongs_to, **spent, "snapshot": vars(snapshot)}
        self._pending.append((snapshot.phase, snapshot.step, to_bytes(content)))
        if self.due():
            self._write()
            self._last = time.monotonic()
            if self.every:
                self._interval = max(self.every, min((self._last - started) / MAX_TIME_SHARE, MAX_INTERVAL))
        self.saving += time.monotonic() - started

    def _write(self) -> None:
        """Write all pending snapshots. Ends of phases stay pending until a checkpoint is due, which needs them."""
        for phase, step, content in self._pending:
            with writing(self.folder, RESUME_HINT):
                write_atomically(self.folder / f"task{self.task}-phase{phase}-step{step:09}.ckpt", content)
            for old in self._files(phase)[_FILES_PER_PHASE:]:
                old.unlink(missing_ok=True)
        self._pending = []

    def latest(self, phase: int) -> Snapshot | None:
        for path in self._files(phase):
            try:
                content = from_bytes(read_bytes(path, MAX_MODEL_BYTES))
                if content["belongs_to"] != self.belongs_to:
                    continue
                snapshot = Snapshot(**content["snapshot"])
                self._spent_before = max(self._spent_before, float(content["seconds"]))
                self._cpu_before = max(self._cpu_before, float(content["cpu_seconds"]))
                return snapshot
            except (Damaged, DataError, KeyError, TypeError, ValueError) as problem:
                path.unlink()  # else it would count as one of the two that are kept
                warnings.warn(f"{path} is damaged ({problem}). The previous checkpoint is used.", stacklevel=2)
        return None

    def clear(self) -> None:
        """Remove all checkpoints, once the task has been saved as a whole."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self, phase: int) -> list[Path]:
        """The checkpoints of one phase, newest first."""
        found = {path: _NAME.fullmatch(path.name) for path in self.folder.glob("*.ckpt")}
        wanted = (str(self.task), str(phase))
        own = {path: int(match[3]) for path, match in found.items() if match and (match[1], match[2]) == wanted}
        return sorted(own, key=lambda path: own[path], reverse=True)


def checkpoints_for_model(path: Path, method: Method, task: Task) -> CheckpointFolder:
    """Checkpoints for teaching a model file one more task; valid only for the same model and the same task."""
    digest = hashlib.sha256(checksum(method.state_dict(), {}).encode())
    digest.update(repr((task.name, task.class_names, tuple(task.train.pixels.shape))).encode())
    for images in (task.train, task.validation):
        digest.update(images.pixels.flatten().numpy().data)
        digest.update(images.labels.numpy().data)
    return CheckpointFolder(lesson_folder(path), len(method.tasks), digest.hexdigest())


def lesson_folder(path: Path) -> Path:
    return hidden_neighbour(path.resolve(), "checkpoints")


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Serialise nested containers of tensors, numbers and strings."""
    body = io.BytesIO()
    torch.save(dict(content), body)
    return MAGIC + hashlib.sha256(body.getbuffer()).digest() + body.getvalue()


def from_bytes(file: bytes) -> dict[str, Any]:
    """The inverse of `to_bytes`; raises `Damaged` for anything else."""
    start = len(MAGIC) + _DIGEST
    if not file.startswith(MAGIC) or len(file) < start:
        raise Damaged("it does not start like a checkpoint")
    if hashlib.sha256(memoryview(file)[start:]).digest() != file[len(MAGIC) : start]:
        raise Damaged("its checksum is wrong")
    try:
        content = torch.load(io.BytesIO(file[start:]), weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as problem:
        raise Damaged(str(problem).partition("\n")[0]) from None
    if not isinstance(content, dict):
        raise Damaged("it does not contain a dictionary")
    return content
