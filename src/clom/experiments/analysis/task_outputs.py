"""What a finished run's task models put out for any images: asked once, then read from the run's folder."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from clom.data.images import Images, to_unit
from clom.errors import UserError
from clom.files import write_atomically
from clom.methods.clom_odin import ClomOdin
from clom.methods.families.base import Method
from clom.methods.families.masked import MaskedMethod
from clom.ood.odin import odin_block
from clom.ood.scores import Outputs, alive
from clom.storage.tensors import read_tensors, to_bytes


@runtime_checkable
class WithFeatures(Protocol):
    """A method that has features of its own for every task."""

    def features(self, pixels: Tensor, task: int) -> Tensor: ...


@runtime_checkable
class WithLinearHead(Protocol):
    """A method whose tasks read their features through a linear head."""

    def linear_head(self, task: int) -> tuple[Tensor, Tensor]: ...


class OutputBook:
    """Blocks, features and ODIN blocks by (set of images, task model).

    Of a task's features only those are kept that answer to its training images at all: the rest are closed units.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.method = method
        self.passes = 0
        """How many (task model, set) pairs were computed by this object."""
        self._path = folder / "features.safetensors"
        self._model = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self._tensors = self._read()

    def _read(self) -> dict[str, Tensor]:
        """What is stored, if it is of this very model."""
        if not self._path.exists():
            return {}
        try:
            tensors, header = read_tensors(self._path)
        except UserError:
            return {}  # damaged: everything in it can be computed again
        return tensors if header.get("model") == self._model else {}

    def save(self) -> None:
        if self.passes:
            write_atomically(self._path, to_bytes(self._tensors, {"model": self._model}))

    def training(self, images: Images, model: int) -> Outputs:
        """Of a task's own training images; to be asked before anything else about this task."""
        if self._is_new("train", images, model) and isinstance(self.method, WithFeatures):
            self._tensors[f"alive.{model}"] = alive(self.method.features(images.pixels, model))
        return self.outputs("train", images, model)

    def alive(self, model: int) -> Tensor:
        return self._tensors[f"alive.{model}"]

    def stored(self, name: str) -> list[Tensor] | None:
        """What all tasks say about a set, if they were asked before; needs no images."""
        blocks = [self._tensors.get(f"{name}.{model}.block") for model in range(len(self.method.tasks))]
        known = [block for block in blocks if block is not None]
        return known if known and len(known) == len(blocks) else None

    def outputs(self, name: str, images: Images, model: int, block: Tensor | None = None) -> Outputs:
        """What task `model` says about a set; `block` where that is known already."""
        key = f"{name}.{model}"
        if self._is_new(name, images, model):
            self._ask(key, images.pixels, model, block)
        found = {part: self._tensors.get(f"{key}.{part}") for part in ("features", "odin")}
        return Outputs(self._tensors[f"{key}.block"].double(), labels=images.labels, **found)

    def _is_new(self, name: str, images: Images, model: int) -> bool:
        stored = self._tensors.get(f"{name}.{model}.block")
        return stored is None or len(stored) != len(images)

    def _ask(self, key: str, pixels: Tensor, model: int, block: Tensor | None) -> None:
        self.passes += 1
        method = self.method
        self._tensors[f"{key}.block"] = known = method.block(pixels, model) if block is None else block
        if isinstance(method, WithFeatures):
            self._tensors[f"{key}.features"] = method.features(pixels, model)[:, self.alive(model)]
        if isinstance(method, ClomOdin):
            self._tensors[f"{key}.odin"] = known.clone()
        elif isinstance(method, MaskedMethod):
            logits_of = partial(method.logits, task=model)
            parts = [odin_block(logits_of, to_unit(part)) for part in torch.split(pixels, 256)]
            self._tensors[f"{key}.odin"] = torch.cat(parts)
