"""One process at a time: a lock that the operating system takes back when its owner ends, however it ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clom.errors import UserError

_SECONDS_TO_SIGN = 0.5


class Lock:
    """A context manager that lets one holder at a time work on `path`, a file or folder that need not exist yet.

    A second one, in another process or thread, gets a UserError that names the first. The lock is a hidden file beside
    `path`; the file alone means nothing, so one that a killed process left behind is in nobody's way.
    """

    def __init__(self, path: Path, doing: str = "taught") -> None:
        self.path, self.doing = path, doing
        place = path.resolve()
        self.file = place.with_name(f".{place.name}.lock")
        self._descriptor = -1

    def __enter__(self) -> Lock:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
            if not _take(descriptor):
                os.close(descriptor)
                raise UserError(
                    f"{self.path} is being {self.doing} by {self._owner()}. Wait until that is done, or stop it."
                )
            if _is_at(descriptor, self.file):
                break
            os.close(descriptor)  # its last holder removed the file between our opening and taking it
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return self

    def __exit__(self, *problem: object) -> None:
        if sys.platform != "win32":  # there, an open file cannot be removed: it stays, and means nothing
            self.file.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _owner(self) -> str:
        """Who holds it; a holder signs the file a moment after taking it."""
        until = time.monotonic() + _SECONDS_TO_SIGN
        while True:
            try:
                number = self.file.read_text().strip()
            except OSError:
                number = ""
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

    def _take(descriptor: int) -> bool:
        """Lock one byte far behind the text, so that others can still read whose it is."""
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _take(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
