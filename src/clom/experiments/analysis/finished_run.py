"""A finished run, read from its folder without training and without its data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from clom.errors import UserError
from clom.evaluation.metrics import Evaluation
from clom.experiments.analysis.predictor_comparison import PredictorResult
from clom.experiments.analysis.task_outputs import OutputBook
from clom.experiments.config import RunConfig
from clom.experiments.ledger import Row
from clom.experiments.run import TaskResult, read_finished, read_results
from clom.files import read_json
from clom.learning.calibration import Affine
from clom.methods.families.base import Blocks, Method, move
from clom.storage.model_file import load_model
from clom.storage.score_file import read_scores


@dataclass(frozen=True)
class FinishedRun:
    """Results, uncalibrated scores and model of a run. `blocks[j]` are all tasks' blocks for task j's test images."""

    folder: Path
    config: RunConfig
    environment: dict[str, Any]
    summary: dict[str, Any]
    tasks: list[TaskResult]
    method: Method
    blocks: list[Blocks]
    external: dict[str, Blocks]
    """Blocks of external data sets, stored by `clom scores`."""
    validation: list[Blocks] | None
    """Blocks of the validation images, stored by `clom scores`; None if it was not called."""
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
        """The method's preferred calibration."""
        return self.method.calibration

    @cached_property
    def calibrations(self) -> Mapping[str, Affine]:
        return self.method.calibrations()


def read_run(folder: Path, device: torch.device | None = None) -> FinishedRun:
    """Read and check the folder of a finished run; its model is moved to `device`."""
    config = read_finished(folder)
    method = load_model(folder / "model.safetensors")
    if device is not None:
        move(method, device)
    n_tasks = len(method.tasks)
    tasks = read_results(folder / "metrics.jsonl", n_tasks)
    scores = _read_comparison(folder / "scores.json")
    outputs = OutputBook(folder, method)
    validation = [outputs.stored(f"validation {task}") for task in range(n_tasks)]
    external = {name: outputs.stored(f"external {name}") for name in (scores or {}).get("external", {})}
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
    Row.of_run(folder)  # checks the summary and the environment
    return run


def _read_comparison(path: Path) -> dict[str, Any] | None:
    """What `clom scores` wrote, with the predictors that earlier versions did not compare; None if it was not run."""
    if not path.exists():
        return None
    scores = {"predictors": {}} | read_json(path)
    try:
        TypeAdapter(dict[str, PredictorResult]).validate_python(scores["predictors"])
        TypeAdapter(dict[str, Any]).validate_python(scores.get("external", {}))
    except ValidationError:
        raise UserError(f"{path} is damaged. 'clom scores' rewrites it.") from None
    return scores
