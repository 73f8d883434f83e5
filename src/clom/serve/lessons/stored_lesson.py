"""The pictures of a job, stored in a private folder next to the model until training succeeds or is cancelled.

They are stored decoded, as uint8 tensors. The folder is created atomically.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from clom.data.folders import Pictures
from clom.data.images import Images
from clom.errors import DataError, UserError
from clom.files import hidden_neighbour, read_json, write_atomically, write_json
from clom.methods.families.base import Method
from clom.serve.images.decoder_pool import Unreadable
from clom.storage.model_file import load_model
from clom.storage.tensors import read_tensors, to_bytes

_ABOUT, _PICTURES, _BEFORE = "lesson.json", "pictures.safetensors", "before.safetensors"


@dataclass(frozen=True)
class Assignment:
    """The task to learn."""

    id: str
    name: str
    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    """Pictures of each class."""
    unreadable: tuple[Unreadable, ...]
    adds: bool = False
    """Whether the pictures are added to classes that the model knows; `name` is then for display."""
    hints: tuple[tuple[str, str], ...] = ()
    """What was noticed about the pictures: kind and text."""


class StoredLesson:
    """The folder of the single job that a model can have."""

    def __init__(self, model: Path) -> None:
        self.model = model.resolve()
        self.folder = hidden_neighbour(self.model, "lesson")

    @property
    def before(self) -> Path:
        """The model before training, for comparison."""
        return self.folder / _BEFORE

    def write(self, assignment: Assignment, pixels: Tensor, labels: Sequence[int]) -> None:
        new = hidden_neighbour(self.model, "lesson.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        tensors = {"pixels": pixels, "labels": torch.tensor(labels, dtype=torch.int64)}
        write_atomically(new / _PICTURES, to_bytes(tensors, {}))
        write_json(new / _ABOUT, asdict(assignment))
        _link(self.model, new / _BEFORE)
        self.remove()
        new.rename(self.folder)

    def read(self) -> Assignment | None:
        """The unfinished job of an earlier process; None if there is none or it is unusable."""
        try:
            about = read_json(self.folder / _ABOUT)
            unreadable = tuple(Unreadable(**file) for file in about.pop("unreadable"))
            names, counts = tuple(about.pop("class_names")), tuple(about.pop("counts"))
            hints = tuple((kind, text) for kind, text in about.pop("hints", ()))
            return Assignment(class_names=names, counts=counts, unreadable=unreadable, hints=hints, **about)
        except (DataError, KeyError, TypeError, ValueError):
            return None

    def pictures(self) -> Pictures:
        assignment = self.read()
        if assignment is None:
            raise UserError(f"The pictures of the lesson are gone from {self.folder}.")
        tensors, _ = read_tensors(self.folder / _PICTURES)
        images = Images(tensors["pixels"], tensors["labels"])
        return Pictures(assignment.class_names, images, tuple(Path() for _ in images.labels), ())

    def was_added(self, assignment: Assignment) -> bool:
        """Whether the model has the pictures of an assignment that adds to known classes."""
        if not self.before.exists():
            return False
        old, new = (_photos_of_classes(load_model(path)) for path in (self.before, self.model))
        expected = zip(assignment.class_names, assignment.counts, strict=True)
        return all(new.get(name) == old.get(name, 0) + count for name, count in expected)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _photos_of_classes(method: Method) -> dict[str, int]:
    """Class -> the photos it was trained on."""
    return {
        name: count
        for task in method.tasks
        if task.record is not None
        for name, count in zip(task.class_names, task.record.images, strict=True)
    }


def _link(source: Path, target: Path) -> None:
    """Hard-link the file, which survives its replacement; copy it where links are not supported."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
