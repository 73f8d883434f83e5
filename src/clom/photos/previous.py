"""The version of a model file before its last change, kept beside it so that the change can be undone.

The kept file is a hard link to the replaced one, named after the SHA-256 of the version that replaced it. A model file
that something else has replaced since therefore has no previous version. A process killed at any moment leaves the
model before or after the change, and the next one that changes the model puts the kept file in order.
"""

from __future__ import annotations

import filecmp
import glob
import hashlib
import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from clom.errors import UserError
from clom.files import FileState, file_state, hidden_neighbour
from clom.locks import Lock
from clom.methods.families.base import Method
from clom.storage.model_file import load_model, save_model

_DIGITS = 32


@dataclass(frozen=True)
class Undone:
    """What undoing the last change did to the tasks, by their names."""

    removed: tuple[str, ...]
    restored: tuple[str, ...]
    changed: tuple[str, ...]
    """Tasks with other photos or class names than before."""


def save_change(path: Path, method: Method, before: FileState | None) -> None:
    """`save_unless_replaced`, keeping the replaced version. The caller must hold the lock."""
    place = path.resolve()
    settle(place)
    if place.exists():
        _link(place, _pending(place))
    else:
        drop_previous(place)
    try:
        save_unless_replaced(path, method, before)
    except UserError:
        _pending(place).unlink(missing_ok=True)  # the model that is there now is not a change of this one
        raise
    settle(place)


def save_unless_replaced(path: Path, method: Method, before: FileState | None) -> None:
    """Save to `path`, unless another program changed that file since it was in the state `before`: then both are kept,
    this one under another name, and the error tells it. The lock keeps other commands away, but not every program."""
    target = path.resolve()  # a link stays a link
    if file_state(target) in (before, None):
        save_model(target, method)
        return
    names = (target.with_name(f"{target.stem}-{number}{target.suffix}") for number in itertools.count(2))
    other = next(name for name in names if not name.exists())
    save_model(other, method)
    raise UserError(
        f"Another program changed {path} in the meantime. That file is left as it is; the result of this command is in "
        f"{other}."
    )


def undo(path: Path) -> Undone:
    """Put back the version before the last change, bit by bit. It can be done once per change."""
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    with Lock(path):
        place = path.resolve()
        settle(place)
        kept = previous_version(place)
        if kept is None:
            raise UserError(
                f"There is nothing to undo in {path}: only the last change can be undone, and only once; forgetting a "
                "task and the first lesson of a new model cannot be undone."
            )
        old, new = load_model(kept), load_model(place)
        kept.replace(place)
    return _difference(old, new)


def previous_version(path: Path) -> Path | None:
    """The kept version that the model at `path` replaced; None if there is none."""
    place = path.resolve()
    if not any(_kept(place)):
        return None  # without reading the model
    kept = _named_after(place)
    return kept if kept.exists() else None


def keeps_previous(path: Path, digest: str) -> bool:
    """Whether the version before the model with this SHA-256, or the start of it, is kept. Reads no file."""
    return any(kept.name.rpartition("-")[2].startswith(digest) for kept in _kept(path.resolve()))


def drop_previous(path: Path) -> None:
    """Delete kept versions: the last change cannot be undone any more."""
    place = path.resolve()
    _pending(place).unlink(missing_ok=True)
    for kept in _kept(place):
        kept.unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Complete or discard what was set aside before a change. The caller must hold the lock."""
    place = path.resolve()
    pending = _pending(place)
    if not pending.exists() or not place.exists():
        return
    if _same(pending, place):
        pending.unlink()  # the change did not happen
        return
    new = _named_after(place)
    pending.replace(new)
    for kept in _kept(place):
        if kept != new:
            kept.unlink(missing_ok=True)


def _pending(place: Path) -> Path:
    return hidden_neighbour(place, "replaced")


def _named_after(place: Path) -> Path:
    with place.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _kept_as(place, digest[:_DIGITS])


def _kept_as(place: Path, digest: str) -> Path:
    return hidden_neighbour(place, f"before-{digest}")


def _kept(place: Path) -> list[Path]:
    start = _kept_as(place, "0" * _DIGITS).name[:-_DIGITS]
    return list(place.parent.glob(glob.escape(start) + "[0-9a-f]" * _DIGITS))


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none; `target` appears whole."""
    temporary = hidden_neighbour(source, f"{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _same(one: Path, two: Path) -> bool:
    return one.samefile(two) or filecmp.cmp(one, two, shallow=False)


def _difference(old: Method, new: Method) -> Undone:
    before, after = ({task.name: task for task in method.tasks} for method in (old, new))
    return Undone(
        removed=tuple(name for name in after if name not in before),
        restored=tuple(name for name in before if name not in after),
        changed=tuple(name for name, task in before.items() if name in after and after[name] != task),
    )
