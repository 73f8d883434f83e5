"""Safe reading of untrusted files (regular files only, of limited size) and atomic writing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from clom.errors import DataError, UserError

MAX_DATA_BYTES = 400_000_000
"""Size limit of one data file, decompressed: eight times MNIST's or twice CIFAR's largest."""
MAX_RECORD_BYTES = 50_000_000
"""Size limit of generated text files: ledgers, metrics, summaries."""
MAX_MODEL_BYTES = 4_000_000_000
_LONGEST_FILE_NAME = 255
"""In bytes, on all common file systems."""


def absolute(path: str | Path, folder: Path | None = None) -> Path:
    """An absolute path from user input: expands `~`; relative to `folder` or else to the working directory."""
    return Path(os.path.abspath(Path(folder or "") / os.path.expanduser(path)))


def check_regular(path: Path) -> None:
    """Raise for folders, and for pipes and devices, which could block or be endless. A missing file passes: opening it
    raises the error."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    _check_mode(path, mode)


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file.")


def read_bytes(path: Path, limit: int = MAX_DATA_BYTES) -> bytes:
    check_regular(path)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            _check_mode(path, found.st_mode)  # again: it may have been replaced
            content = _read_at_most(file, limit + 1, expected=found.st_size)
    except (OSError, ValueError) as problem:  # ValueError: an invalid file name
        raise DataError(f"Cannot read {path}: {getattr(problem, 'strerror', None) or problem}.") from problem
    if len(content) > limit:
        raise DataError(f"{path} is too large: expected at most {limit} bytes.")
    return content


def _read_at_most(file: BinaryIO, limit: int, expected: int) -> bytes:
    """Python reserves as many bytes as are asked for, so no more than are expected are asked for at once."""
    parts, size = list[bytes](), 0
    while size < limit and (part := file.read(min(limit - size, expected + 1))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe at once, even if nobody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: Path, limit: int = MAX_RECORD_BYTES) -> str:
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"Cannot read {path}: it is not UTF-8 text ({problem.reason}).") from problem


def parse_json(text: str) -> Any:
    """Like `json.loads`, but raises nothing but `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """The names and values that a JSON file holds."""
    try:
        content = parse_json(read_text(path))
    except ValueError as problem:
        raise DataError(f"{path} cannot be read ({problem}).") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: it should hold names and values.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def hidden_neighbour(path: Path, ending: str) -> Path:
    """`.name.ending` in the folder of `path`, for its lock, temporary files and checkpoints. If that is longer than
    file names may be, a hash takes the place of the name."""
    name = f".{path.name}.{ending}"
    if len(os.fsencode(name)) > _LONGEST_FILE_NAME:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.{ending}"
    return path.with_name(name)


def remove_temporary_files(path: Path) -> None:
    """Delete what killed processes left when they wrote `path`, but not what others write to similar names."""
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        process = left.name.removesuffix(".tmp").rpartition(".")[2]
        if process.isdecimal() and left == hidden_neighbour(path, f"{process}.tmp"):
            left.unlink(missing_ok=True)


FileState = tuple[int, int, int]


def file_state(path: Path) -> FileState | None:
    """A value that changes when the file is replaced or written to; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, fsync, then rename: a reader sees the old file or the new one.

    The new file has the permissions and, if this process may set them, the owner and group of the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = hidden_neighbour(path, f"{os.getpid()}.tmp")
    try:
        with _create_like(temporary, path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        problem.filename = problem.filename or str(path)  # the error of a full disk names no file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _create_like(path: Path, model: Path) -> BinaryIO:
    """Create a file to write, with the mode, owner and group of `model` if that exists. Group permissions are dropped
    if the group cannot be kept: they would hold for another one."""
    path.unlink(missing_ok=True)  # with O_EXCL, a link that somebody put there is never followed
    old = model.stat() if model.exists() else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666 if old is None else 0o600)
    if old is not None and sys.platform != "win32":
        mode = stat.S_IMODE(old.st_mode) & 0o777
        if not _set_owner(descriptor, old.st_uid, old.st_gid) and not _set_owner(descriptor, -1, old.st_gid):
            mode &= ~0o070
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "wb")


def _set_owner(descriptor: int, user: int, group: int) -> bool:
    """Whether the owner and group of an open file are these now; -1 leaves one as it is."""
    found = os.fstat(descriptor)
    if user in (-1, found.st_uid) and group == found.st_gid:
        return True
    try:
        os.fchown(descriptor, user, group)
    except PermissionError:
        return False
    return True


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Turn errors such as a full or read-only disk into a `UserError` with the path and `advice`."""
    try:
        yield
    except OSError as problem:
        raise UserError(
            f"Cannot write {problem.filename or folder}: {problem.strerror or problem}. Existing files are intact. "
            f"{advice}"
        ) from problem
