"""Give classes and tasks other names. No number of the model changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clom.errors import UserError
from clom.methods.families.base import Method
from clom.photos.changes.model_change import changed_model, task_of_class
from clom.photos.changes.names import clean_name
from clom.storage.fingerprint import fingerprint


def rename_class(path: Path, old: str, new: str) -> str:
    """Rename a class in the model file; returns the new name as it was stored."""
    new = clean_name(new, "class")
    with changed_model(path) as method:
        number = task_of_class(method, old)
        task_of = {name: task.name for task in method.tasks for name in task.class_names}
        if new in task_of:
            raise UserError(
                f"There is a class '{new}' already, in task '{task_of[new]}'. To take both for one class: clom merge "
                f"MODEL '{old}' '{new}'"
            )
        intact = _is_as_recorded(method, number)
        for place, task in enumerate(method.tasks):
            names = tuple(new if name == old else name for name in task.class_names)
            merged = {new if name == old else name: new if into == old else into for name, into in task.merged.items()}
            method.tasks[place] = replace(task, class_names=names, merged=merged)
        record = method.tasks[number].record
        if record is not None and intact:  # the fingerprint covers the names of the classes
            record = record.model_copy(update={"fingerprint": fingerprint(method, number)})
            method.tasks[number] = replace(method.tasks[number], record=record)
    return new


def rename_task(path: Path, old: str, new: str) -> str:
    """Rename a task in the model file; returns the new name as it was stored."""
    new = clean_name(new, "task")
    with changed_model(path) as method:
        number = method.task_number(old)
        if new in {task.name for task in method.tasks}:
            raise UserError(f"There is a task '{new}' already. Choose another name.")
        method.tasks[number] = replace(method.tasks[number], name=new)
    return new


def _is_as_recorded(method: Method, number: int) -> bool:
    """Whether the task's fingerprint is the recorded one; a damaged task must not become intact by a new name."""
    record = method.tasks[number].record
    return record is not None and record.fingerprint == fingerprint(method, number)
