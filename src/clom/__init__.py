"""Continual learning of image classes by out-of-distribution detection and task masks.

import clom

stream = clom.load_stream("digits-5t")
model = clom.make_method("clom", "digits-5t")
for task in stream:
    model.learn(task)
print(clom.evaluate(model, stream.tests).til)
clom.save_model("digits.safetensors", model)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clom.api import (
        DataSet,
        Images,
        Method,
        Outputs,
        Score,
        Stream,
        Task,
        TaskPredictor,
        evaluate,
        load_model,
        load_plugin,
        load_stream,
        make_method,
        register_dataset,
        register_method,
        register_network,
        register_predictor,
        register_score,
        save_model,
        split,
    )
    from clom.estimator.classifier import ClomClassifier

__version__ = "0.1.0"

__all__ = [
    "ClomClassifier",
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


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    # Imported lazily: torch takes a second, and `clom --help` must not.
    if name in __all__:
        module = "clom.estimator.classifier" if name == "ClomClassifier" else "clom.api"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'clom' has no attribute '{name}'")
