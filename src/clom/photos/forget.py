"""Removing a task from a model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clom.locks import Lock
from clom.photos.teach import remove_leftovers
from clom.storage.model_file import load_model, save_model


@dataclass(frozen=True)
class Forgotten:
    """What is gone."""

    task: str
    class_names: tuple[str, ...]
    freed: dict[str, float]
    """Gate group -> share of its units that no task uses any more."""
    stays: str
    """What of it cannot be taken back, as a sentence; empty if nothing."""


def forget(path: Path, task: str) -> Forgotten:
    """Remove a task by its name; the others answer as before, to the last bit. The old file survives any failure."""
    with Lock(path):
        method = load_model(path)
        remove_leftovers(path)
        number = method.task_number(task)
        learned, before = method.tasks[number], method.capacity()
        stays = method.forget(number)
        save_model(path.resolve(), method)
    after = {group: used[-1] if used else 0.0 for group, used in method.capacity().items()}
    freed = {group: used[-1] - after.get(group, 0.0) for group, used in before.items()}
    return Forgotten(learned.name, learned.class_names, freed, stays)
