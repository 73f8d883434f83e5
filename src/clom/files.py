"""Safe reading of untrusted files (regular files only, of limited size) and atomic writing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clom.errors import DataError, UserError

MAX_DATA_BYTES = 400_000_000
"""Size limit of one data file, decompressed: eight times MNIST's or twice CIFAR's largest."""
MAX_RECORD_BYTES = 50_000_000
"""Size limit of generated text files: ledgers, metrics, summaries."""


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
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file.")


def read_bytes(path: Path, limit: int = MAX_DATA_BYTES) -> bytes:
    check_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as problem:  # ValueError: an invalid file name
        raise DataError(f"Cannot read {path}: {getattr(problem, 'strerror', None) or problem}.") from problem
    if len(content) > limit:
        raise DataError(f"{path} is too large: expected at most {limit} bytes.")
    return content


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


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, fsync, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        problem.filename = problem.filename or str(path)  # the error of a full disk names no file
        raise
    finally:
        temporary.unlink(missing_ok=True)


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
