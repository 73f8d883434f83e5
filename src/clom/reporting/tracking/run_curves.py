"""What trackers get of a run after each task: accuracies, capacity and a picture of the AUC grid.

Tested by tests/reporting/tracking/test_tracker.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import pyplot as plt

from clom.experiments.task_result import TaskResult
from clom.reporting.figures.run_details import auc_grid_figure
from clom.reporting.tracking.tracker import GuardedTrackers
from clom.storage.score_file import read_scores

if TYPE_CHECKING:
    from clom.reporting.tracking.tracker import Pixels


def track_task(trackers: GuardedTrackers, result: TaskResult, folder: Path) -> None:
    """Send the results after a task, with the number of learned tasks as the step. `folder` has the run's scores."""
    n_tasks = result.evaluation.n_tasks
    trackers.scalars(task_values(result), n_tasks)
    if n_tasks > 1:
        trackers.picture("AUC grid", lambda: auc_picture(folder, n_tasks), n_tasks)


def task_values(result: TaskResult) -> Mapping[str, float]:
    """Results after a task by name; accuracies in percent."""
    evaluation, chosen = result.evaluation, result.evaluation.preferred
    percent = {
        "accuracy/TIL": evaluation.til,
        "accuracy/CIL": chosen.cil,
        "accuracy/task detection": chosen.task_detection,
        "accuracy/AUC": chosen.auc_maxlogit,
        **{f"TIL by task/{task}": value for task, value in enumerate(evaluation.til_by_task, start=1)},
        **{f"CIL by task/{task}": value for task, value in enumerate(chosen.cil_by_task, start=1)},
        **{f"units in use/{group}": share for group, share in result.capacity.items()},
    }
    return {name: 100 * value for name, value in percent.items()} | {"time/minutes": result.minutes}


def auc_picture(folder: Path, n_tasks: int) -> Pixels:
    """The AUC grid of the first `n_tasks` tasks, from the scores that are stored in the run's folder."""
    blocks = read_scores(folder / "scores.safetensors")
    figure = auc_grid_figure([row[:n_tasks] for row in blocks[:n_tasks]], folder.name)
    figure.set_dpi(110)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()  # type: ignore[attr-defined]
    plt.close(figure)
    return pixels
