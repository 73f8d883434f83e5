"""The public Python API, re-exported by `import clom`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clom.data.catalog import register_dataset
from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task, split
from clom.evaluation.metrics import Evaluation
from clom.evaluation.metrics import evaluate as evaluate_scores
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve, with_code_loaded
from clom.machine import choose_device
from clom.methods.families.base import Method, move
from clom.methods.registry import METHODS, register_method
from clom.nets.networks.registry import register_network
from clom.ood.predictors.base import TaskPredictor
from clom.ood.registry import register_predictor, register_score
from clom.ood.scores import Outputs, Score
from clom.plugins import load_plugin
from clom.storage import model_file as store

__all__ = [
    "DataSet",
    "Images",
    "Method",
    "Outputs",
    "Score",
    "Stream",
    "Task",
    "TaskPredictor",
    "evaluate",
    "load_model",
    "load_plugin",
    "load_stream",
    "make_method",
    "register_dataset",
    "register_method",
    "register_network",
    "register_predictor",
    "register_score",
    "save_model",
    "split",
]


def load_stream(experiment: str, budget: str = "cpu", seed: int = 0, data: str | Path | None = None) -> Stream:
    """The tasks of an experiment, given by name or path of its YAML file; `data` is the folder of the data sets."""
    return resolve(experiment, budget=budget, seed=seed).data.stream(Path(data) if data else None, seed)


def make_method(
    name: str,
    experiment: str,
    budget: str = "cpu",
    seed: int = 0,
    image_shape: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    **overrides: Any,
) -> Method:
    """An untrained method with the settings of an experiment.

    `name` is a name from `clom list methods`, or code: `my_file.py:Mine`, `package.module:Mine`.
    `overrides` are settings with dots written as double underscores: `learning__plan__epochs=10`. `image_shape` is
    needed only if the images' shape differs from the experiment's. `device` is `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.
    """
    settings = with_code_loaded({option.replace("__", "."): value for option, value in overrides.items()})
    config = resolve(experiment, METHODS.named(name), budget, seed, settings)
    method = config.make_method(image_shape or config.image_shape())
    move(method, _device(device))
    return method


def evaluate(method: Method, tests: Sequence[Images]) -> Evaluation:
    """TIL, CIL, task detection and AUC on the test sets of all learned tasks."""
    book = Scorebook(tests)
    book.update(method)
    return evaluate_scores(book, method.decisions())


def save_model(path: str | Path, method: Method) -> None:
    """Write a model file atomically, replacing an existing one."""
    store.save_model(Path(path), method)


def load_model(path: str | Path, device: str | torch.device = "cpu") -> Method:
    """Load a model file for inference or further training. Runs no code from the file."""
    method = store.load_model(Path(path))
    move(method, _device(device))
    return method


def _device(device: str | torch.device) -> torch.device:
    return choose_device(device) if isinstance(device, str) else device
