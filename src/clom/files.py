"""Reading what people give (regular files only, and never more of one than is sensible for its kind), and writing files
in one piece or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clom.errors import DataError, UserError

MOST_DATA = 400_000_000
"""Bytes of one data file, unpacked: eight times MNIST's or twice CIFAR's largest."""
MOST_RECORDS = 50_000_000
"""Bytes of a text that a program wrote: ledgers, metrics, summaries."""


def absolute(path: str | Path, folder: Path | None = None) -> Path:
    """A path as a person writes it, `~` for home included, relative to `folder` or else to the working directory."""
    return Path(os.path.abspath(Path(folder or "") / os.path.expanduser(path)))


def check_regular(path: Path) -> None:
    """Refuses folders, and pipes and devices, which would be waited for or read for ever. An absent file passes:
    whoever opens it says so."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file.")


def read_bytes(path: Path, most: int = MOST_DATA) -> bytes:
    check_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as problem:  # ValueError: no system allows such a name
        raise DataError(f"Cannot read {path}: {getattr(problem, 'strerror', None) or problem}.") from problem
    if len(content) > most:
        raise DataError(f"{path} is too large: expected at most {most} bytes.")
    return content


def read_text(path: Path, most: int = MOST_RECORDS) -> str:
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"Cannot read {path}: it is not text in UTF-8 ({problem.reason}).") from problem


def parse_json(text: str) -> Any:
    """As `json.loads`, but a `ValueError` is all that can go wrong."""
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
    """Write beside the target, flush to the disk, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        problem.filename = problem.filename or str(path)  # a full disk does not say which file it had no room for
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path, then: str) -> Iterator[None]:
    """A disk that is full or may not be written to is the user's to mend: say where, and what to do `then`."""
    try:
        yield
    except OSError as problem:
        raise UserError(
            f"Cannot write {problem.filename or folder}: {problem.strerror or problem}. What was there before is "
            f"intact. {then}"
        ) from problem
