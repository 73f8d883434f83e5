"""Learn from a folder that fills up: new classes become tasks, new photos of known classes are added to them.

Photos are read once the folder has been quiet for a while, so that none is read while it is being copied. What has been
learned is noted in a file beside the model, together with the state of the model before each change: a process killed
at any moment neither misses a photo nor learns one twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clom.data.folders import Pictures, check_amounts, folder_content, read_classes, read_sized_picture, readable
from clom.errors import DataError, UserError
from clom.files import hidden_neighbour, read_json, write_json
from clom.photos.changes.add import Added, add_photos
from clom.photos.teach import Lesson, Listener, teach
from clom.storage.model_file import load_model

LEAST_PHOTOS, LEAST_CLASSES = 5, 2
Stamps = dict[str, list[int]]
"""Class and file name -> size and time of the last change."""


@dataclass(eq=False)
class FolderWatch:
    """A folder with one sub-folder per class, and the model that learns from it. The folder may not exist yet."""

    model: Path
    folder: Path
    name: str | None = None
    """Of the tasks; by default the folder's. Further ones are numbered."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of `clom.photos.teach.teach` for a new model."""
    device: torch.device | None = None
    quiet_seconds: float = 5.0
    """How long the folder must not have changed before its photos are read."""

    def __post_init__(self) -> None:
        self.waiting = ""
        """What is missing before more can be learned; empty if nothing is."""
        self._seen: tuple[Stamps, float] = ({}, 0.0)
        self._refused: dict[str, Stamps] = {}
        self._notes = _Notes(self.model, self.folder)

    def look(self, now: float, listener: Callable[[], Listener] = Listener) -> Iterator[Lesson | Added | UserError]:
        """Learn what is new at the time `now`, in seconds; yields what was learned, or why it could not be."""
        stamps = _stamps(self.folder)
        if stamps != self._seen[0]:
            self._seen = stamps, now
        fresh = {name: stamp for name, stamp in stamps.items() if self._notes.learned.get(name) != stamp}
        if not fresh or now - self._seen[1] < self.quiet_seconds:
            return
        known = _known_classes(self.model)
        new = {name: stamp for name, stamp in fresh.items() if _class_of(name) not in known}
        more = {name: stamp for name, stamp in fresh.items() if _class_of(name) in known}
        ready = self._ready(new)
        if ready:
            yield from self._once("new", ready, lambda: self._teach(ready, listener()))
        if more:
            yield from self._once("more", more, lambda: self._add(more, listener()))

    def _ready(self, new: Stamps) -> Stamps:
        """The photos of new classes that have enough of them, if there are enough such classes."""
        by_class: dict[str, Stamps] = {}
        for name, stamp in new.items():
            by_class.setdefault(_class_of(name), {})[name] = stamp
        enough = {name: files for name, files in by_class.items() if len(files) >= LEAST_PHOTOS}
        few = [f"'{name}' {len(files)}" for name, files in by_class.items() if name not in enough]
        self.waiting = ""
        if len(enough) < LEAST_CLASSES and by_class:
            found = ", ".join([*few, *(f"'{name}' {len(files)}" for name, files in enough.items())])
            self.waiting = (
                f"Waiting: a new task needs {LEAST_CLASSES} classes of {LEAST_PHOTOS} photos each; so far {found}."
            )
            return {}
        return {name: stamp for files in enough.values() for name, stamp in files.items()}

    def _once(
        self, kind: str, files: Stamps, learn: Callable[[], Lesson | Added]
    ) -> Iterator[Lesson | Added | UserError]:
        """Learn, and do not try again with the same files if they were refused."""
        if self._refused.get(kind) == files:
            return
        self._notes.intend(files)
        try:
            found = learn()
        except UserError as problem:
            self._refused[kind] = files
            yield problem
            return
        self._notes.done()
        yield found

    def _teach(self, files: Stamps, listener: Listener) -> Lesson:
        def source(size: int) -> Pictures:
            pictures = self._read(files, size)
            check_amounts(self.folder, pictures, LEAST_PHOTOS)
            return pictures

        name = _free_name(self.model, self.name or self.folder.resolve().name or "photos")
        return teach(self.model, source, name, listener=listener, device=self.device, **self.options)

    def _add(self, files: Stamps, listener: Listener) -> Added:
        def source(size: int) -> Pictures:
            pictures = self._read(files, size)
            if not pictures.paths:
                raise UserError(f"None of {len(files)} new files in {self.folder} can be read as a photo.")
            return pictures

        return add_photos(self.model, source, listener=listener, device=self.device)

    def _read(self, files: Stamps, size: int) -> Pictures:
        classes: dict[str, list[Path]] = {}
        for name in sorted(files):
            classes.setdefault(_class_of(name), []).append(self.folder / name)
        return read_classes(classes, lambda path: read_sized_picture(path, size))


class _Notes:
    """What has been learned from a folder, and what is being learned, in a file beside the model."""

    def __init__(self, model: Path, folder: Path) -> None:
        place = model.resolve()
        self._model, self._folder = place, str(folder.resolve())
        self._file = hidden_neighbour(place, "watched")
        self.learned: Stamps = {}
        self._pending: Stamps = {}
        about = self._read()
        if about.get("folder") == self._folder:
            self.learned, self._pending = about["learned"], about["pending"]
            if self._pending and _digest(self._model) != about["before"]:
                self.done()  # the model was saved, and then the process was killed

    def intend(self, files: Stamps) -> None:
        self._pending = files
        self._write(_digest(self._model))

    def done(self) -> None:
        self.learned = {**self.learned, **self._pending}
        self._pending = {}
        self._write("")

    def _read(self) -> dict[str, Any]:
        """The notes; empty if there are none, or if they are damaged: then every photo is new."""
        try:
            about = read_json(self._file) if self._model.exists() else {}
        except DataError:
            return {}
        whole = all(isinstance(about.get(name), dict) for name in ("learned", "pending")) and "before" in about
        return about if whole else {}

    def _write(self, before: str) -> None:
        content = {"folder": self._folder, "learned": self.learned, "pending": self._pending, "before": before}
        write_json(self._file, content)


def _stamps(folder: Path) -> Stamps:
    """All files that may be photos of a class."""
    found: Stamps = {}
    for inside in folder_content(folder)[0] if folder.is_dir() else ():
        for file in folder_content(inside)[1]:
            try:
                about = file.stat()
            except OSError:
                continue  # gone again
            found[f"{inside.name}/{file.name}"] = [about.st_size, about.st_mtime_ns]
    return found


def _class_of(name: str) -> str:
    return readable(name.partition("/")[0])


def _known_classes(model: Path) -> set[str]:
    return {name for task in load_model(model).tasks for name in task.class_names} if model.exists() else set()


def _free_name(model: Path, name: str) -> str:
    taken = {task.name for task in load_model(model).tasks} if model.exists() else set()
    numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _digest(path: Path) -> str:
    if not path.exists():
        return "no model"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
