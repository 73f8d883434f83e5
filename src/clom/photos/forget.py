"""Removing a task from a model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clom.files import file_state
from clom.locks import Lock
from clom.photos.previous import drop_previous, save_unless_replaced
from clom.photos.teach import remove_leftovers
from clom.storage.model_file import load_model


@dataclass(frozen=True)
class Forgotten:
    """Summary of a removed task."""

    task: str
    class_names: tuple[str, ...]
    freed: dict[str, float]
    """Gate group -> fraction of its units that became free."""
    stays: str
    """A sentence on what could not be removed; empty if everything was."""


def forget(path: Path, task: str) -> Forgotten:
    """Remove a task by name, also from the version kept for `undo`; the others stay bit-identical.

    The file is replaced atomically.
    """
    with Lock(path):
        state = file_state(path)
        method = load_model(path)
        remove_leftovers(path)
        number = method.task_number(task)
        learned, before, counts = method.tasks[number], method.capacity(), method.unit_counts()
        stays = method.forget(number)
        drop_previous(path)  # which has the task
        save_unless_replaced(path, method, state)
    after = {group: used[-1] if used else 0.0 for group, used in method.capacity().items()}
    left = {group: units[-1] / counts[group][-1] if units else 1.0 for group, units in method.unit_counts().items()}
    freed = {group: used[-1] - left.get(group, 1.0) * after.get(group, 0.0) for group, used in before.items()}
    return Forgotten(learned.name, learned.class_names, freed, stays)
