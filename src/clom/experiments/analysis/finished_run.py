"""A finished run as its folder tells it: nothing is learned, and no data set is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.evaluation.metrics import Evaluation
from clom.experiments.analysis.task_outputs import OutputBook
from clom.experiments.config import RunConfig
from clom.experiments.ledger import Row
from clom.experiments.run import TaskResult, read_finished, read_results
from clom.files import read_json
from clom.learning.calibration import Affine
from clom.methods.families.base import Blocks, Method
from clom.storage.model_file import load_model
from clom.storage.score_file import read_scores


@dataclass(frozen=True)
class FinishedRun:
    """Figures, raw scores and model of a run. `blocks[j]` is what all tasks' models say about task j's test images."""

    folder: Path
    config: RunConfig
    environment: dict[str, Any]
    summary: dict[str, Any]
    tasks: list[TaskResult]
    method: Method
    blocks: list[Blocks]
    external: dict[str, Blocks]
    """Sets of which `clom scores` kept what the models say."""
    validation: list[Blocks] | None
    """What `clom scores` kept of the validation images; None if it was not called."""
    scores: dict[str, Any] | None
    """`scores.json`."""

    @property
    def history(self) -> list[Evaluation]:
        return [task.evaluation for task in self.tasks]

    @property
    def last(self) -> Evaluation:
        return self.tasks[-1].evaluation

    @property
    def class_names(self) -> list[tuple[str, ...]]:
        return [task.class_names for task in self.method.tasks]

    @cached_property
    def calibration(self) -> Affine:
        """The method's own choice, by which it answers."""
        return self.method.calibration

    @cached_property
    def calibrations(self) -> Mapping[str, Affine]:
        return self.method.calibrations()

    @cached_property
    def calibrated(self) -> list[Blocks]:
        return [self.calibration(row) for row in self.blocks]


def read_run(folder: Path) -> FinishedRun:
    """Everything in the folder of a finished run, or an error that says what is wrong with it."""
    config = read_finished(folder)
    method = load_model(folder / "model.safetensors")
    n_tasks = len(method.tasks)
    tasks = read_results(folder / "metrics.jsonl", n_tasks)
    scores = read_json(folder / "scores.json") if (folder / "scores.json").exists() else None
    kept = OutputBook(folder, method)
    validation = [kept.stored(f"validation {task}") for task in range(n_tasks)]
    names = (scores or {}).get("external", {})
    if not isinstance(names, dict):
        raise UserError(f"{folder / 'scores.json'} is damaged. 'clom scores' writes it anew.")
    external = {name: kept.stored(f"external {name}") for name in names}
    run = FinishedRun(
        folder,
        config,
        read_json(folder / "environment.json"),
        read_json(folder / "summary.json"),
        tasks,
        method,
        read_scores(folder / "scores.safetensors", [task.n_classes for task in method.tasks]),
        {name: blocks for name, blocks in external.items() if blocks is not None},
        None if any(blocks is None for blocks in validation) else [blocks for blocks in validation if blocks],
        scores,
    )
    Row.of_run(folder)  # what the summary and the environment hold is checked by whoever records it
    return run
