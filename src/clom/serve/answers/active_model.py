"""The model in use, and its description for the page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clom.files import MAX_MODEL_BYTES, read_bytes
from clom.methods.families.base import Method, move
from clom.photos.predict import Predictor
from clom.storage.describe import describe_method
from clom.storage.model_file import load_model

RATES = tuple(percent / 100 for percent in range(51))
"""False-rejection rates of the page's slider."""


@dataclass(frozen=True)
class ActiveModel:
    """One immutable version of the model file."""

    method: Method
    predictor: Predictor | None
    """None before the first task."""
    version: str
    """The start of the SHA-256 of the file."""
    about: dict[str, Any]

    @property
    def size(self) -> int:
        return self.method.image_shape[-1]

    @property
    def task_names(self) -> list[str]:
        return [task.name for task in self.method.tasks]

    @property
    def task_of_class(self) -> dict[str, str]:
        return {name: task.name for task in self.method.tasks for name in task.class_names}


def load_active_model(path: Path, device: torch.device) -> ActiveModel:
    """Load the file and run one prediction, so that no request has to wait for the sub-networks to be built."""
    content = read_bytes(path, MAX_MODEL_BYTES)
    method = load_model(path)
    move(method, device)
    predictor = Predictor(method) if method.tasks else None
    if predictor is not None:
        predictor(torch.zeros(1, *method.image_shape, dtype=torch.uint8))
    version = hashlib.sha256(content).hexdigest()[:12]
    about = {
        "file": path.name,
        "version": version,
        "bytes": len(content),
        **describe_method(method),
        "units": units(method),
        "rejection": rejection(method),
    }
    return ActiveModel(method, predictor, version, about)


def rejection(method: Method) -> dict[str, Any]:
    """For each rate of `RATES`, the fraction of held-out pictures that would be rejected."""
    records = [task.record for task in method.tasks if task.record and task.record.belonging]
    held = sum(len(record.belonging) for record in records)
    lost = [sum(record.own_scores.rejected_share(rate) * len(record.belonging) for record in records) for rate in RATES]
    return {"rates": list(RATES), "held_out": held, "costs": [each / max(1, held) for each in lost]}


@torch.no_grad()
def units(method: Method) -> list[dict[str, Any]]:
    """Per layer: the number of units, and for every task the units it opened and those it shares."""
    masks = [method.gates(task) for task in range(len(method.tasks))]
    layers = []
    for group in masks[0] if masks else ():
        size = len(masks[0][group])
        used, tasks = torch.zeros(size, dtype=torch.bool), []
        for learned, mask in zip(method.tasks, masks, strict=True):
            opened = mask[group] > 0.5
            new, shared = int((opened & ~used).sum()), int((opened & used).sum())
            tasks.append({"task": learned.name, "opened": new, "shared": shared})
            used |= opened
        layers.append({"layer": group, "units": size, "free": size - int(used.sum()), "tasks": tasks})
    return layers
