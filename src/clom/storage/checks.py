"""Checks of a model file's content, so that errors appear when it is loaded and not during inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from clom.data.memory import Memory
from clom.methods.families.base import Method

_Name = Annotated[str, Field(max_length=1000)]


class _Task(BaseModel):
    name: _Name
    class_names: Annotated[list[_Name], Field(min_length=1)]
    units: dict[_Name, Annotated[int, Field(ge=1)]] = {}


class _Description(BaseModel):
    """The fields that no other type validates."""

    method: str
    net: dict[str, Any]
    image_shape: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=3, max_length=3)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    tasks: list[_Task]
    plugins: dict[_Name, _Name] = {}


def check_description(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description unchanged; raise if its values have wrong types."""
    _Description.model_validate(description, strict=True)
    return description


def check_values(method: Method, stored: Mapping[str, Tensor]) -> None:
    """Raise unless the stored tensors have the method's data types and finite values."""
    for name, value in method.state_dict().items():
        if stored[name].dtype != value.dtype:
            raise ValueError(f"{name} has type {stored[name].dtype}, not {value.dtype}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} contains NaN or infinite values")
    for module in method.modules():
        if isinstance(module, Memory):
            _check_memory(module, method)


def _check_memory(memory: Memory, method: Method) -> None:
    n_classes = torch.tensor([0, *(task.n_classes for task in method.tasks)])
    tasks = memory.tasks + 1
    if len(tasks) and not (int(tasks.min()) > 0 and int(tasks.max()) < len(n_classes)):
        raise ValueError("it stores images of unknown tasks")
    if not bool(((memory.labels >= 0) & (memory.labels < n_classes[tasks])).all()):
        raise ValueError("it stores images of unknown classes")
