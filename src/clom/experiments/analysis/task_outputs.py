"""What a finished run's task models compute for any images: computed once, then read from the run's folder.

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
"""What a score may need -> what a method must offer for it. Labels come with the images."""


def unmet(method: Method, needs: Collection[str]) -> list[str]:
    """The needs of a score that this method cannot meet."""
    wanted = dict.fromkeys([*(["features"] if _reads_features(needs) else []), *needs])
    return [need for need in wanted if need in _CAPABILITIES and not method.offers(_CAPABILITIES[need])]


class OutputBook:
    """Blocks, features and ODIN blocks by (set of images, task model).

    Of a task's features only those are kept that its training images ever activate: the rest are closed units.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.method = method
        self._path = folder / "features.safetensors"
        self._model = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self._tensors = self._read()
        self._changed = False

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
        if self._changed:
            write_atomically(self._path, to_bytes(self._tensors, {"model": self._model}))
            self._changed = False

    def stored(self, name: str) -> list[Tensor] | None:
        """All tasks' blocks of a set, if they were computed before; needs no images."""
        blocks = [self._tensors.get(f"{name}.{model}.block") for model in range(len(self.method.tasks))]
        known = [block for block in blocks if block is not None]
        return known if known and len(known) == len(blocks) else None

    def training(self, images: Images, model: int, needs: Collection[str]) -> Outputs:
        """Of a task's own training images; to be called before `outputs` is called for this task."""
        if _reads_features(needs) and self._lacks("train", "features", images, model):
            self._put(f"alive.{model}", active_features(self.method.features(images.pixels, model)))
        return replace(self.outputs("train", images, model, needs), labels=images.labels)

    def outputs(
        self, name: str, images: Images, model: int, needs: Collection[str], block: Tensor | None = None
    ) -> Outputs:
        """What the model of task `model` computes for a set; `block` where that is known already."""
        pixels, method = images.pixels, self.method

        def part(kind: str, compute: Callable[[], Tensor]) -> Tensor:
            if self._lacks(name, kind, images, model):
                self._put(f"{name}.{model}.{kind}", compute())
            return self._tensors[f"{name}.{model}.{kind}"]

        found = part("block", lambda: method.block(pixels, model) if block is None else block)
        features = odin = head = None
        if _reads_features(needs):
            open_units = self._tensors[f"alive.{model}"]
            features = part("features", lambda: method.features(pixels, model)[:, open_units])
        if "odin" in needs:
            odin = part("odin", lambda: method.odin_block(pixels, model))
        if "linear_head" in needs:
            weight, bias = method.linear_head(model)
            head = weight[:, self._tensors[f"alive.{model}"]], bias
        return Outputs(found.double(), features, odin=odin, linear_head=head)

    def _lacks(self, name: str, part: str, images: Images, model: int) -> bool:
        stored = self._tensors.get(f"{name}.{model}.{part}")
        return stored is None or len(stored) != len(images)

    def _put(self, key: str, values: Tensor) -> None:
        self._tensors[key] = values
        self._changed = True


def _reads_features(needs: Collection[str]) -> bool:
    """A linear head comes with the features it reads."""
    return "features" in needs or "linear_head" in needs
