"""Change a model file in one piece.

Tested by tests/photos/changes/test_rename.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clom.errors import UserError, unknown
from clom.files import file_state
from clom.locks import Lock
from clom.methods.families.base import Method
from clom.photos.previous import save_change, settle
from clom.photos.teach import remove_leftovers
from clom.storage.model_file import load_model


@contextmanager
def changed_model(path: Path) -> Iterator[Method]:
    """The model at `path`, which is replaced when the block ends, and stays as it was if the block raises."""
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    with Lock(path):
        remove_leftovers(path)
        settle(path)
        before = file_state(path)
        method = load_model(path)
        yield method
        save_change(path, method, before)


def task_of_class(method: Method, name: str) -> int:
    """The number of the task that a class belongs to."""
    for number, task in enumerate(method.tasks):
        if name in task.class_names:
            return number
    raise unknown("class", name, [known for task in method.tasks for known in task.class_names])
