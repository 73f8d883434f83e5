"""The signature of a run's folder: checksums of the files that decide its results, in `signature.json`.

Files that were edited, or that come from another run, are named instead of becoming part of the results. This protects
against mistakes and not against forgery: whoever can write the files can sign them, too.

A task changes several files, which cannot be replaced at once. So the new ones are written to another folder, signed
beside the old ones, and then moved: whenever that is interrupted, every file is one that was signed.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from clom.errors import DataError, UserError
from clom.files import check_regular, read_json, write_json

NAME = "signature.json"
RESULTS = ("metrics.jsonl", "scores.safetensors", "model.safetensors", "summary.json")
"""The signed files beside the configuration, in the order in which they are replaced."""
_STAGE = ".new"
_AGAIN = "Restore it, or start over in another folder with 'clom run ... --out FOLDER'."


@dataclass(frozen=True)
class Signature:
    """What the files of a run have to be."""

    config: str
    """SHA-256 of `config.yaml`."""
    data: str | None = None
    """SHA-256 of the images, as in `environment.json`; None until the first task is learned."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """File -> SHA-256 of its content; while files are being replaced, of the old and of the new content."""


def begin(folder: Path) -> None:
    """Sign the configuration of a run that has learned nothing yet."""
    _write(folder, Signature(_digest(folder / "config.yaml")))


def is_signed(folder: Path) -> bool:
    return (folder / NAME).exists()


def update(folder: Path, data: str | None, write: Callable[[Path], None]) -> None:
    """Replace results of a run: `write` gets an empty folder for them."""
    stage = folder / _STAGE
    remove_leftovers(folder)
    stage.mkdir(parents=True)
    write(stage)
    new = {name: _digest(stage / name) for name in RESULTS if (stage / name).exists()}
    known = _read(folder) if is_signed(folder) else Signature(_digest(folder / "config.yaml"))
    kept = {name: digests for name, digests in known.files.items() if name not in new}
    old = {name: [_digest(folder / name)] for name in new if (folder / name).exists()}
    both = {name: [digest, *old.get(name, [])] for name, digest in new.items()}
    _write(folder, replace(known, data=data, files=kept | both))
    for name in new:
        (stage / name).replace(folder / name)
    _write(folder, replace(known, data=data, files=kept | {name: [digest] for name, digest in new.items()}))
    stage.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted `update` left."""
    shutil.rmtree(folder / _STAGE, ignore_errors=True)


def check(folder: Path) -> None:
    """Raise a UserError that names a file which is not as the run wrote it. Runs of earlier versions have no signature:
    a warning says that nothing could be checked."""
    if not is_signed(folder):
        if (folder / "model.safetensors").exists():
            warnings.warn(
                f"The run in {folder} was started by an earlier version, which did not sign its files: whether they "
                "belong together cannot be checked.",
                stacklevel=1,  # the same place for all callers, so that it is shown once
            )
        return
    signature, config = _read(folder), folder / "config.yaml"
    if not config.exists():
        raise UserError(f"{config} is missing. {_AGAIN}")
    if _digest(config) != signature.config:
        raise UserError(f"{config} is not as it was when the run began. {_AGAIN}")
    if not (folder / "model.safetensors").exists():
        return  # the run starts over
    for name in RESULTS:
        path = folder / name
        if path.exists() and _digest(path) not in signature.files.get(name, []):
            raise UserError(
                f"{path} is not what this run wrote: it was changed, or it belongs to another run. {_AGAIN}"
            )
    environment = folder / "environment.json"
    if signature.data is not None and environment.exists() and _data(environment) != signature.data:
        raise UserError(f"{environment} does not name the images of this run. {_AGAIN}")


def _read(folder: Path) -> Signature:
    try:
        found = Signature(**read_json(folder / NAME))
        if not (isinstance(found.config, str) and all(isinstance(known, list) for known in found.files.values())):
            raise TypeError
    except (DataError, TypeError, AttributeError):
        raise UserError(f"{folder / NAME} is damaged. {_AGAIN}") from None
    return found


def _write(folder: Path, signature: Signature) -> None:
    write_json(folder / NAME, asdict(signature))


def _digest(path: Path) -> str:
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _data(environment: Path) -> object:
    try:
        return read_json(environment).get("data_sha256")
    except DataError:
        return None
