"""Separation of the tasks of a model by their OOD scores."""

from __future__ import annotations

from typing import Any

import torch

from clom.evaluation.metrics import auc, pair_grid
from clom.methods.families.base import Method

_MOST_PER_TASK = 24


@torch.no_grad()
def separation(method: Method) -> dict[str, Any] | None:
    """The AUC of every pair of tasks on the held-out pictures stored in the model; None if there are none.

    Calibration used the same pictures, but it is monotonic within a task and does not change the AUC.
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
