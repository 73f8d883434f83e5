"""File locks between processes, which the operating system releases when their owner ends, even by a crash."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clom.errors import UserError
from clom.files import hidden_neighbour

_SECONDS_TO_WRITE_PID = 0.5
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""The lock is written to: in a folder that others can write to, a link could lead to any file."""
_SECONDS_BETWEEN_TRIES = 0.05


class Held(UserError):
    """Somebody else holds the lock."""


class Lock:
    """A context manager that gives one holder at a time access to `path`, a file or folder that need not exist yet.

    A second holder, in another process or thread, gets an error that names the first, after `patience` seconds. The
    lock is held on a hidden file next to `path`; a stale file left by a killed process does not lock anything.
    """

    def __init__(self, path: Path, doing: str = "taught", patience: float = 0.0) -> None:
        self.path, self.doing, self.patience = path, doing, patience
        self.file = hidden_neighbour(path.resolve(), "lock")
        self._descriptor = -1

    def __enter__(self) -> Lock:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self.patience
        while True:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o644)
            if not _acquire(descriptor):
                os.close(descriptor)
                if time.monotonic() < until:
                    time.sleep(_SECONDS_BETWEEN_TRIES)
                    continue
                raise Held(f"{self.path} is being {self.doing} by {self._owner()}. Wait until it is done, or stop it.")
            if _is_at(descriptor, self.file):
                break
            os.close(descriptor)  # its last holder removed the file after we opened it
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return self

    def __exit__(self, *problem: object) -> None:
        if sys.platform != "win32":  # Windows cannot remove an open file: it stays, unlocked
            self.file.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _owner(self) -> str:
        """The holder, which writes its process id to the file shortly after acquiring the lock."""
        until = time.monotonic() + _SECONDS_TO_WRITE_PID
        while True:
            try:
                number = self.file.read_text().strip()
            except OSError:
                number = ""
            number = number if number.isdecimal() and len(number) < 20 else ""  # anybody may have written it
            if number or time.monotonic() > until:
                return f"process {number}" if number else "another process"
            time.sleep(0.01)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _acquire(descriptor: int) -> bool:
        """Lock one byte far beyond the text, so that others can still read the process id."""
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _acquire(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
