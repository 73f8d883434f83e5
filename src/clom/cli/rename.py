"""`clom rename`: give a class or a task another name.

Tested by tests/cli/test_photo_changes.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.learn import say


def rename_command(model: Path, old: str, new: str, *, task: bool = False) -> None:
    """Give a class another name, or a task with --task. No number of the model changes.

    Parameters
    ----------
    model
        The model file.
    old
        The present name; `clom inspect` lists them.
    new
        The new name.
    task
        Rename a task instead of a class.
    """
    from clom.photos.changes.rename import rename_class, rename_task

    stored = (rename_task if task else rename_class)(model, old, new)
    say(Console(), f"The {'task' if task else 'class'} '{old}' is now '{stored}'.")
