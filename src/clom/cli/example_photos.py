"""`clom example-photos`: images for trying the photo commands.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.learn import say
from clom.errors import UserError


def example_photos_command(
    folder: Path,
    *,
    per_class: Annotated[int, Parameter(validator=Number(gte=5))] = 20,
    seed: int = 0,
) -> None:
    """Generate folders of example photos: two to learn, one of new photos of the same classes, one of unknown classes.

    Parameters
    ----------
    folder
        The output folder, which must be new or empty.
    per_class
        Photos per class.
    seed
        Random seed.
    """
    from clom.data.example_photos import TASKS, write_example_photos

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder. Choose a new one for the example photos.")
    photos = write_example_photos(folder, per_class, seed=seed)
    console = Console()
    say(console, f"Generated {len(photos)} photos:")
    for task, classes in TASKS.items():
        say(console, f"  {folder / task}: {', '.join(classes)}")
    say(console, f"  {folder / 'new'}: other photos of the same classes")
    say(console, f"  {folder / 'other'}: photos of unknown classes")
    say(console, f"Next: clom learn my.model {folder / 'shapes'}")
