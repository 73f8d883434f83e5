"""`clom undo`: take back the last change of a model.

Tested by tests/cli/test_photo_changes.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.learn import say


def undo_command(model: Path) -> None:
    """Take back the last change of a model: a lesson, added photos, a new name or a merged class.

    The model file becomes bit-identical to the one before. Only the last change can be undone.
    Forgetting a task cannot.

    Parameters
    ----------
    model
        The model file.
    """
    from clom.photos.previous import undo

    undone = undo(model)
    console = Console()
    say(console, f"{model} is as it was before its last change.")
    for what, tasks in (("Gone", undone.removed), ("Back", undone.restored), ("As before", undone.changed)):
        if tasks:
            say(console, f"{what}: {', '.join(repr(task) for task in tasks)}")
