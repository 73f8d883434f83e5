"""Checkpoints of a task as files: torch's format behind a checksum. Reading one runs no code of it.

A file is replaced in one piece or not at all, and of every phase the last two are kept. One that is torn, cut or
changed by a single bit is noticed by its checksum; then the one before is used.
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
from clom.files import write_atomically, writing
from clom.learning.context import Checkpoints, Snapshot
from clom.methods.families.base import Method
from clom.stopping import StopRequest
from clom.storage.tensors import checksum

MAGIC = b"clom checkpoint 1\n"
_DIGEST = hashlib.sha256().digest_size
_KEPT = 2
_NAME = re.compile(r"task(\d+)-phase(\d+)-step(\d+)\.ckpt")

RESUME_HINT = "Once that is mended, the same command goes on where it was."
SECONDS = 10.0
"""How often a checkpoint is made by default: what an interruption costs at most."""
LARGEST_SHARE = 0.01
"""Of the time, for checkpoints: those that take long are made less often than asked for, ..."""
LONGEST_PAUSE = 600.0
"""... but never less often than this."""


class Damaged(Exception):
    """A file is not, or not any more, what was written."""


class CheckpointFolder(Checkpoints):
    """The checkpoints of one task of a run.

    `belongs_to` says of what: whatever else is in the folder is not used. With `every` 0 each step is kept.
    """

    def __init__(
        self, folder: Path, task: int, belongs_to: str, every: float = SECONDS, stop: StopRequest | None = None
    ) -> None:
        self.folder, self.task, self.belongs_to, self.every = folder, task, belongs_to, every
        self.stop = stop or StopRequest()
        self.saving = 0.0
        """Seconds that this object spent on saving."""
        self._spent_before = self._cpu_before = 0.0
        self._began = self._last = time.monotonic()
        self._cpu_began = time.process_time()
        self._pause = every
        self._held: list[tuple[int, int, bytes]] = []

    @property
    def seconds(self) -> float:
        """Time spent on the task, in this process and in interrupted ones as far as checkpoints know."""
        return self._spent_before + time.monotonic() - self._began

    @property
    def cpu_seconds(self) -> float:
        """The same, added up over all cores."""
        return self._cpu_before + time.process_time() - self._cpu_began

    def due(self) -> bool:
        return self.stop.requested or time.monotonic() - self._last >= self._pause

    def stop_if_requested(self) -> None:
        if self.stop.requested:
            self._write()
        self.stop.raise_if_requested()

    def save(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        spent = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        content = {"belongs_to": self.belongs_to, **spent, "snapshot": vars(snapshot)}
        self._held.append((snapshot.phase, snapshot.step, to_bytes(content)))
        if self.due():
            self._write()
            self._last = time.monotonic()
            if self.every:
                self._pause = max(self.every, min((self._last - started) / LARGEST_SHARE, LONGEST_PAUSE))
        self.saving += time.monotonic() - started

    def _write(self) -> None:
        """Ends of phases that came too soon after the last checkpoint wait for the next one, which needs them."""
        for phase, step, content in self._held:
            with writing(self.folder, RESUME_HINT):
                write_atomically(self.folder / f"task{self.task}-phase{phase}-step{step:09}.ckpt", content)
            for old in self._files(phase)[_KEPT:]:
                old.unlink(missing_ok=True)
        self._held = []

    def latest(self, phase: int) -> Snapshot | None:
        for path in self._files(phase):
            try:
                content = from_bytes(path.read_bytes())
                if content["belongs_to"] != self.belongs_to:
                    continue
                snapshot = Snapshot(**content["snapshot"])
                self._spent_before = max(self._spent_before, float(content["seconds"]))
                self._cpu_before = max(self._cpu_before, float(content["cpu_seconds"]))
                return snapshot
            except (Damaged, KeyError, TypeError, ValueError) as problem:
                path.unlink()  # else it would count as one of the two that are kept
                warnings.warn(f"{path} is damaged ({problem}). What was kept before it is used.", stacklevel=2)
        return None

    def clear(self) -> None:
        """The task is kept as a whole now."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self, phase: int) -> list[Path]:
        """The checkpoints of one phase, newest first."""
        found = {path: _NAME.fullmatch(path.name) for path in self.folder.glob("*.ckpt")}
        wanted = (str(self.task), str(phase))
        own = {path: int(match[3]) for path, match in found.items() if match and (match[1], match[2]) == wanted}
        return sorted(own, key=lambda path: own[path], reverse=True)


def beside_model(path: Path, method: Method, task: Task) -> CheckpointFolder:
    """For a model file that is taught one more task: of use to whoever teaches this very model this very task."""
    digest = hashlib.sha256(checksum(method.state_dict(), {}).encode())
    digest.update(repr((task.name, task.class_names, tuple(task.train.pixels.shape))).encode())
    for images in (task.train, task.validation):
        digest.update(images.pixels.flatten().numpy().data)
        digest.update(images.labels.numpy().data)
    return CheckpointFolder(lesson_folder(path), len(method.tasks), digest.hexdigest())


def lesson_folder(path: Path) -> Path:
    place = path.resolve()
    return place.with_name(f".{place.name}.checkpoints")


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Tensors, numbers, names and what is made of them."""
    body = io.BytesIO()
    torch.save(dict(content), body)
    return MAGIC + hashlib.sha256(body.getbuffer()).digest() + body.getvalue()


def from_bytes(file: bytes) -> dict[str, Any]:
    """The opposite; whatever `to_bytes` did not write is refused."""
    start = len(MAGIC) + _DIGEST
    if not file.startswith(MAGIC) or len(file) < start:
        raise Damaged("it does not begin like a checkpoint")
    if hashlib.sha256(memoryview(file)[start:]).digest() != file[len(MAGIC) : start]:
        raise Damaged("its checksum is wrong")
    try:
        content = torch.load(io.BytesIO(file[start:]), weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as problem:
        raise Damaged(str(problem).partition("\n")[0]) from None
    if not isinstance(content, dict):
        raise Damaged("it holds something else")
    return content
