"""`clom correct`: tell a model the right class of photos.

Tested by tests/cli/test_photo_changes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.learn import say, show_added, show_skipped
from clom.cli.options import Device
from clom.errors import UserError


def correct_command(
    model: Path,
    class_name: str,
    /,
    *photos: str,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Tell a model that photos show a class it knows. They are added to that class; other tasks stay bit-identical.

    Parameters
    ----------
    model
        The model file.
    class_name
        The right class of all these photos.
    photos
        Photos, folders or zip files of photos, or glob patterns.
    threads
        Number of CPU threads; by default one per core.
    """
    from clom import machine
    from clom.data.finding import find_files
    from clom.photos.changes.add import correct

    files, missing = find_files(photos)
    if not photos:
        raise UserError("No photos given. Name them after the class: clom correct MODEL CLASS PHOTO ...")
    if missing:
        raise UserError(f"{missing[0].path}: {missing[0].reason}. The model is unchanged.")
    machine.tune_process(threads)
    added = correct(model, class_name, files, machine.choose_device(device))
    console = Console()
    for file, before, after in zip(added.files, added.before, added.after, strict=True):
        say(console, f"{file}: {before or 'unknown'} before, {after or 'unknown'} now")
    show_skipped(console, added.skipped)
    show_added(console, added)
