"""`clom merge`: take two classes for one.

Tested by tests/cli/test_photo_changes.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.learn import say


def merge_command(model: Path, name: str, into: str) -> None:
    """Take two classes for one: photos of the first are answered as the second. No score of the model changes.

    Parameters
    ----------
    model
        The model file.
    name
        The class whose name will no longer be answered.
    into
        The class that is answered instead, of the same task or another.
    """
    from clom.photos.changes.merge import merge_classes

    answered = merge_classes(model, name, into)
    say(Console(), f"'{name}' is now answered as '{answered}'. 'clom undo {model}' takes this back.")
