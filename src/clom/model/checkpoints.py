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

from clom.learning.resume import Checkpoints, Snapshot
from clom.model.store import write_safely, writing
from clom.stopping import StopRequest

MAGIC = b"clom checkpoint 1\n"
_DIGEST = hashlib.sha256().digest_size
_KEPT = 2
_NAME = re.compile(r"task(\d+)-phase(\d+)-step(\d+)\.ckpt")

GO_ON = "Once that is mended, the same command goes on where it was."
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
        self._spent_before = (0.0, 0.0)
        self._began = time.monotonic(), time.process_time()
        self._last = time.monotonic()
        self._pause = every

    def spent(self) -> tuple[float, float]:
        """Seconds spent on the task, and those of all cores together; in interrupted processes, too."""
        now = time.monotonic(), time.process_time()
        wall, cores = (
            before + end - begin for before, end, begin in zip(self._spent_before, now, self._began, strict=True)
        )
        return wall, cores

    def due(self) -> bool:
        return self.stop.made or time.monotonic() - self._last >= self._pause

    def stop_if_asked(self) -> None:
        self.stop.obey()

    def save(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        content = {"belongs_to": self.belongs_to, "spent": list(self.spent()), "snapshot": vars(snapshot)}
        name = f"task{self.task}-phase{snapshot.phase}-step{snapshot.step:09}.ckpt"
        with writing(self.folder, GO_ON):
            write_safely(self.folder / name, to_bytes(content))
        for old in self._files(snapshot.phase)[_KEPT:]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()
        self.saving += self._last - started
        if self.every:
            self._pause = max(self.every, min((self._last - started) / LARGEST_SHARE, LONGEST_PAUSE))

    def latest(self, phase: int) -> Snapshot | None:
        for path in self._files(phase):
            try:
                content = from_bytes(path.read_bytes())
                if content["belongs_to"] != self.belongs_to:
                    continue
                snapshot = Snapshot(**content["snapshot"])
                wall, cores = content["spent"]
                self._spent_before = max(self._spent_before, (wall, cores))
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
