"""Checks of a model file's content, so that errors appear when it is loaded and not during inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Self

import torch
from pydantic import AfterValidator, BaseModel, Field, model_validator
from torch import Tensor

from clom.data.memory import Memory
from clom.methods.families.base import Method
from clom.nets.size_limit import ComputeLimit, TooMuch
from clom.storage.fingerprint import probes
from clom.untrusted_text import LONGEST_NAME

_LARGEST_SIDE = 1024
_MOST_ELEMENTS, _MOST_WORK = 16_000_000, 5e10
"""Of one tensor (64 MB), and multiply-adds (a few seconds), for the scores of one image by one task. The pretrained
network needs 2.5 million and 0.8 billion for the four rotations of a photo."""
_WORK_OF_ALL_TASKS = 5e9
_Name = Annotated[str, Field(max_length=LONGEST_NAME)]
_Side = Annotated[int, Field(ge=1, le=_LARGEST_SIDE)]


def _grey_or_colour(shape: list[int]) -> list[int]:
    if shape[0] not in (1, 3):
        raise ValueError("images must have 1 or 3 channels")
    return shape


class _Task(BaseModel):
    name: _Name
    class_names: Annotated[list[_Name], Field(min_length=1)]
    units: dict[_Name, Annotated[int, Field(ge=1)]] = {}
    merged: dict[_Name, _Name] = {}


class _Description(BaseModel):
    """The fields that no other type validates."""

    method: str
    net: dict[str, Any]
    image_shape: Annotated[list[_Side], Field(min_length=3, max_length=3), AfterValidator(_grey_or_colour)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    tasks: list[_Task]
    plugins: dict[_Name, _Name] = {}

    @model_validator(mode="after")
    def _merged_classes_exist(self) -> Self:
        """A class is merged into one that answers under its own name."""
        merged = {name for task in self.tasks for name in task.merged}
        final = {name for task in self.tasks for name in task.class_names} - merged
        for task in self.tasks:
            if not (task.merged.keys() <= set(task.class_names) and set(task.merged.values()) <= final):
                raise ValueError(f"task '{task.name}' has classes merged into unknown ones")
        return self


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


@torch.no_grad()
def check_answers(method: Method) -> None:
    """Raise unless a generated image gets finite scores of the right shape, with little memory and work.

    The work of one task must stay below a limit. That of all tasks together may be large for good reasons: then the
    scores of the later ones are not looked at here, only when they are used.
    """
    if not method.tasks:
        return
    image, threads = probes(method.image_shape, 1), torch.get_num_threads()
    torch.set_num_threads(1)  # limits hold for this thread, and others must not do its work
    try:
        with ComputeLimit(_MOST_ELEMENTS, _MOST_WORK, "one image needs more memory or work than is plausible"):
            _check_scores(method, *method.blocks_and_belonging(image, [0]), [0])
        if len(method.tasks) > 1:
            with suppress(TooMuch), ComputeLimit(_MOST_ELEMENTS, _WORK_OF_ALL_TASKS, ""):
                blocks, belonging = method.blocks_and_belonging(image)
                _check_scores(method, blocks, belonging, range(len(method.tasks)))
                compared = method.comparable_blocks(image) if method.uses_predictor else method.calibration(blocks)
                _check_scores(method, compared, belonging, range(len(method.tasks)))
    finally:
        torch.set_num_threads(threads)


def _check_scores(method: Method, blocks: Sequence[Tensor], belonging: Tensor, tasks: Sequence[int]) -> None:
    for task, block in zip(tasks, blocks, strict=True):
        if block.shape != (1, method.tasks[task].n_classes):
            raise ValueError(f"task '{method.tasks[task].name}' has scores of shape {tuple(block.shape)}")
    if not all(bool(torch.isfinite(values).all()) for values in (*blocks, belonging)):
        raise ValueError("the scores of a generated image are NaN or infinite")


def _check_memory(memory: Memory, method: Method) -> None:
    n_classes = torch.tensor([0, *(task.n_classes for task in method.tasks)])
    tasks = memory.tasks + 1
    if len(tasks) and not (int(tasks.min()) > 0 and int(tasks.max()) < len(n_classes)):
        raise ValueError("it stores images of unknown tasks")
    if not bool(((memory.labels >= 0) & (memory.labels < n_classes[tasks])).all()):
        raise ValueError("it stores images of unknown classes")
