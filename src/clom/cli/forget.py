"""`clom forget`: remove a task from a model.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

from clom.cli.console import Console
from clom.cli.learn import say
from clom.cli.options import ModelFile


def forget_command(model: ModelFile, task: str) -> None:
    """Remove a task from a model and free its units; the other tasks stay bit-identical.

    Parameters
    ----------
    model
        The model file.
    task
        The task's name; `clom inspect` lists them.
    """
    from clom import machine
    from clom.photos.forget import forget

    machine.tune_process()
    gone = forget(model, task)
    console = Console()
    say(console, f"Forgot '{gone.task}': {', '.join(gone.class_names)}.")
    freed = ", ".join(f"{group} {share:.0%}" for group, share in gone.freed.items())
    if freed:
        say(console, f"Freed units: {freed}.")
    if gone.stays:
        say(console, gone.stays)
