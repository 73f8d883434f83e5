"""How well each task of a model tells its own pictures from those of the others."""

from __future__ import annotations

from typing import Any

import torch

from clom.evaluation.metrics import auc, pair_grid
from clom.methods.families.base import Method

_MOST_PER_TASK = 24


@torch.no_grad()
def separation(method: Method) -> dict[str, Any] | None:
    """The AUC of every pair of tasks, from the held-out pictures that the model keeps; None if it keeps none.

    These are few, and the model was calibrated with them, which moves no picture past another within a task's scores.
    """
    if len(method.tasks) < 2:
        return None
    scores = []
    for task in range(len(method.tasks)):
        images = method.held_out_images(task)
        if images is None:
            return None
        rows = torch.linspace(0, len(images) - 1, min(len(images), _MOST_PER_TASK)).round().long()
        scores.append(list(method.belonging(images[rows]).unbind(1)))
    grid = pair_grid(scores, auc)
    return {"tasks": [task.name for task in method.tasks], "auc": grid, "pictures": [len(own[0]) for own in scores]}
