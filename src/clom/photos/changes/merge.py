"""Take two classes for one: the model answers both by one name.

Their scores stay separate, so no number of the model changes and a class of two kinds is not averaged to one of neither
kind; their probabilities are added when an answer is given.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clom.errors import UserError
from clom.photos.changes.model_change import changed_model, task_of_class


def merge_classes(path: Path, name: str, into: str) -> str:
    """From now on, photos of class `name` are answered as class `into`, of the same task or another.

    Returns the class they are answered as: if `into` has been merged itself, the one that it is answered as.
    """
    with changed_model(path) as method:
        own, target = (method.tasks[task_of_class(method, known)] for known in (name, into))
        final = target.merged.get(into, into)
        if own.merged.get(name, name) == final:
            raise UserError(f"'{name}' and '{into}' are one class already. Name two different classes.")
        into = final
        for number, task in enumerate(method.tasks):
            moved = [known for known in task.class_names if known == name or task.merged.get(known) == name]
            if moved:
                method.tasks[number] = replace(task, merged={**task.merged, **dict.fromkeys(moved, into)})
    return into
