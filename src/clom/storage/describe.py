"""A description of a model file as JSON-compatible data.

Tested by tests/photos/test_teach.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clom.methods.families.base import LearnedTask, Method
from clom.storage.model_file import load_model


def describe(path: Path) -> dict[str, Any]:
    """The file, its tasks in learning order with their records, and capacity."""
    method = load_model(path)
    return {"file": str(path), "bytes": path.stat().st_size, **describe_method(method)}


def describe_method(method: Method) -> dict[str, Any]:
    """The same for a model in memory."""
    return {
        "method": method.name,
        "backbone": method.net_settings.kind,
        "image_shape": list(method.image_shape),
        "seed": method.seed,
        "parameters": method.n_parameters(),
        "memory_bytes": method.memory_bytes,
        "exact_memory": method.exact_memory,
        "capacity": {group: used[-1] if used else 0.0 for group, used in method.capacity().items()},
        "capacity_by_task": {group: list(used) for group, used in method.capacity().items()},
        "units_by_task": {group: list(units) for group, units in method.unit_counts().items()},
        "tasks": [_described(task) for task in method.tasks],
    }


def _described(task: LearnedTask) -> dict[str, Any]:
    record = task.record.model_dump(mode="json", exclude={"belonging"}) if task.record else {}
    merged = {"merged": dict(task.merged)} if task.merged else {}
    return {"name": task.name, "classes": list(task.class_names), **merged, **record}
