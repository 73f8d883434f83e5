"""Outputs of a finished run's task models for any images: computed once, then read from the run's folder.

Tested by tests/experiments/analysis/test_ood_scores.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from clom.data.images import Images
from clom.errors import UserError
from clom.files import write_atomically
from clom.methods.families.base import Capability, Method
from clom.ood.scores import Outputs, active_features
from clom.storage.tensors import read_tensors, to_bytes

_CAPABILITIES: dict[str, Capability] = {
    "features": "features",
    "linear_head": "linear_head",
    "odin": "task_logits",
}
"""What a score may need -> the capability that a method must have for it. Labels come with the images."""


def unmet(method: Method, needs: Collection[str]) -> list[str]:
    """The needs of a score that this method cannot meet."""
    wanted = dict.fromkeys([*(["features"] if _reads_features(needs) else []), *needs])
    return [need for need in wanted if need in _CAPABILITIES and not method.offers(_CAPABILITIES[need])]


class OutputBook:
    """Blocks, features and ODIN blocks by (set of images, task model).

    Only features that a task's training images activate are stored: the others are closed units.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.method = method
        self._path = folder / "features.safetensors"
        self._model = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self._tensors = self._read()
        self._changed = False

    def _read(self) -> dict[str, Tensor]:
        """The stored tensors, if they belong to this model."""
        if not self._path.exists():
            return {}
        try:
            tensors, header = read_tensors(self._path)
        except UserError:
            return {}  # damaged, but everything in it can be recomputed
        return tensors if header.get("model") == self._model else {}

    def save(self) -> None:
        if self._changed:
            write_atomically(self._path, to_bytes(self._tensors, {"model": self._model}))
            self._changed = False

    def stored(self, name: str) -> list[Tensor] | None:
        """All tasks' blocks for a set of images, if they were computed before."""
        blocks = [self._tensors.get(f"{name}.{model}.block") for model in range(len(self.method.tasks))]
        known = [block for block in blocks if block is not None]
        return known if known and len(known) == len(blocks) else None

    def training(self, images: Images, model: int, needs: Collection[str]) -> Outputs:
        """Outputs for a task's training images; to be called before `outputs` for this task."""
        if _reads_features(needs) and self._lacks("train", "features", images, model):
            self._put(f"alive.{model}", active_features(self.method.features(images.pixels, model)))
        return replace(self.outputs("train", images, model, needs), labels=images.labels)

    def outputs(
        self, name: str, images: Images, model: int, needs: Collection[str], block: Tensor | None = None
    ) -> Outputs:
        """Outputs of the model of task `model` for a set of images; `block` if that is known already."""
        pixels, method = images.pixels, self.method

        def cached(kind: str, compute: Callable[[], Tensor]) -> Tensor:
            if self._lacks(name, kind, images, model):
                self._put(f"{name}.{model}.{kind}", compute())
            return self._tensors[f"{name}.{model}.{kind}"]

        scores = cached("block", lambda: method.block(pixels, model) if block is None else block)
        features = odin = head = None
        if _reads_features(needs):
            open_units = self._tensors[f"alive.{model}"]
            features = cached("features", lambda: method.features(pixels, model)[:, open_units])
        if "odin" in needs:
            odin = cached("odin", lambda: method.odin_block(pixels, model))
        if "linear_head" in needs:
            weight, bias = method.linear_head(model)
            head = weight[:, self._tensors[f"alive.{model}"]], bias
        return Outputs(scores.double(), features, odin=odin, linear_head=head)

    def _lacks(self, name: str, kind: str, images: Images, model: int) -> bool:
        stored = self._tensors.get(f"{name}.{model}.{kind}")
        return stored is None or len(stored) != len(images)

    def _put(self, key: str, values: Tensor) -> None:
        self._tensors[key] = values
        self._changed = True


def _reads_features(needs: Collection[str]) -> bool:
    """A linear head needs the features it reads."""
    return "features" in needs or "linear_head" in needs
