"""The data of an experiment: a data set by name, folders of pictures, or arrays in an npz file.

| `data:` | images | tasks |
|---|---|---|
| `set: NAME` | a registered data set | by `classes_per_task`, `sizes` or `groups` |
| `folder: PATH` | one folder of pictures for each class | the same |
| `folders: [PATH, ...]` | several such folders | by default one for each folder |
| `npz: PATH` | arrays `images` and `labels` | by `classes_per_task`, `sizes` or `groups` |

If a source has no test images, a share of its images is used, chosen by file name or content, independent of the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, field_validator, model_serializer, model_validator
from torch import Tensor

from clom import machine
from clom.data import catalog
from clom.data.catalog import SETS
from clom.data.decoding import picture_size
from clom.data.folders import Pictures, listed, picture_files, read_folder, readable
from clom.data.formats import as_images, read_npz_arrays
from clom.data.images import DataSet, Images, Outline, middle_square, without_colour
from clom.data.stratified import with_held_out_tests
from clom.data.stream import Stream, split
from clom.errors import DataError, UserError
from clom.files import absolute
from clom.settings import Positive, Settings

DEFAULT_TEST_SHARE = 0.2
"""Default share of test images."""
DEFAULT_PIXELS = 32
"""As in the paper; for pictures of different sizes or larger than `MAX_NATURAL_PIXELS`."""
MIN_PIXELS, MAX_NATURAL_PIXELS, MAX_PIXELS = 8, 64, 512
_SOURCES = ("set", "folder", "folders", "npz")
_OPTIONAL = ("test", "pixels", "held_out", "first_tasks")  # recorded only where they are set


class DataSettings(Settings):
    """The images, and how they are split into tasks. Paths are relative to the working directory."""

    set: str | None = None
    folder: Path | None = None
    folders: tuple[Path, ...] | None = None
    npz: Path | None = None
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of test images, if the source has no separate ones."""
    pixels: Annotated[int, Field(ge=MIN_PIXELS, le=MAX_PIXELS)] | None = None
    """Side to which the centre square of each image is resized."""
    classes_per_task: int | None = None
    sizes: tuple[int, ...] | None = None
    groups: tuple[tuple[str, ...], ...] | None = None
    order_seed: int | None = None
    validation: float = 0.1
    train_per_class: int | None = None
    test_per_class: int | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the training images of each class that replaces the test images, for choosing settings."""
    first_tasks: Positive | None = None
    """Learn only this many tasks, from the first."""

    @field_validator("folder", "folders", "npz")
    @classmethod
    def _absolute(cls, given: Path | tuple[Path, ...] | None) -> Path | tuple[Path, ...] | None:
        if isinstance(given, tuple):
            return tuple(absolute(path) for path in given)
        return given and absolute(given)

    @model_validator(mode="after")
    def _one_source(self) -> DataSettings:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"it has {' and '.join(given)}" if given else "it has none of them"
            raise UserError(f"The data of an experiment must have exactly one of {', '.join(_SOURCES)}; {found}.")
        if self.set is not None and self.test is not None:
            raise UserError(f"The data set '{self.set}' has its own test images: remove data.test.")
        if self.folders is not None and not self.folders:
            raise UserError("data.folders is empty: name one folder for each task.")
        return self

    @model_serializer(mode="wrap")
    def _without_unused(self, dump: Callable[[DataSettings], dict[str, Any]]) -> dict[str, Any]:
        """Omit unused settings, so that runs on a named set are recorded as in earlier versions."""
        unused = {name for name in (*_SOURCES, *_OPTIONAL) if getattr(self, name) is None}
        return {name: value for name, value in dump(self).items() if name not in unused}

    @property
    def name(self) -> str:
        if self.set is not None:
            return self.set
        return self.npz.stem if self.npz is not None else listed(path.name for path in self._places)

    @property
    def _places(self) -> tuple[Path, ...]:
        return self.folders or tuple(path for path in (self.folder, self.npz) if path is not None)

    def available(self, folder: Path | None = None) -> bool:
        """Whether the images exist locally, judging by file names only."""
        if self.set is not None:
            return self.set in SETS and catalog.available(self.set, folder)
        return all(_located(place, folder).exists() for place in self._places)

    def resolved(self) -> DataSettings:
        """Settings with `pixels` filled in: by default the pictures' own size if all have the same, else 32."""
        if self.pixels is not None or self.set is not None:
            return self
        outline = self.outline()
        side = None if outline is None else outline.pixels
        natural = side is not None and MIN_PIXELS <= side <= MAX_NATURAL_PIXELS
        return self.model_copy(update={"pixels": side if natural else DEFAULT_PIXELS})

    def outline(self) -> Outline | None:
        """What is known about the images without reading them, before `pixels` and `train_per_class` apply."""
        if self.set is not None:
            return catalog.outline_of(self.set)
        return _npz_outline(self.npz) if self.npz is not None else _folders_outline(self._places)

    def n_train(self) -> int | None:
        """The approximate number of training and validation images, if it is known without reading them."""
        outline = self.outline()
        if outline is None:
            return None
        most = outline.n_train if self.train_per_class is None else outline.n_classes * self.train_per_class
        return min(most, outline.n_train)

    def n_classes(self) -> int | None:
        """The number of classes of all tasks, if it is known without reading the images."""
        if self.groups is not None:
            return sum(map(len, self.groups))
        if self.sizes is not None:
            return sum(self.sizes)
        outline = self.outline()
        return None if outline is None else outline.n_classes

    def load(self, folder: Path | None = None) -> DataSet:
        """The images. `folder` is the user's folder of data sets, also searched for pictures that have been moved."""
        resolved = self.resolved()
        if self.set is not None:
            return _fitted(catalog.load(self.set, folder), self.pixels)
        assert resolved.pixels is not None
        if self.npz is not None:
            return _fitted(_read_npz(_located(self.npz, folder), self.test), resolved.pixels)
        places = [_located(place, folder) for place in self._places]
        return _read_folders(self.name, places, resolved.pixels, self.test, as_tasks=self.folders is not None)

    def stream(self, folder: Path | None, seed: int) -> Stream:
        return self.tasks_of(self.load(folder), seed)

    def tasks_of(self, images: DataSet, seed: int) -> Stream:
        """Split images into tasks by these settings."""
        if self.held_out is not None:
            kept = with_held_out_tests(images, self.held_out, self.train_per_class)
            drawn = {"held_out": None, "train_per_class": None, "test_per_class": None}
            return self.model_copy(update=drawn).tasks_of(kept, seed)
        stream = split(
            images,
            sizes=self.sizes,
            classes_per_task=self.classes_per_task,
            groups=self.groups,
            order_seed=self.order_seed,
            validation=self.validation,
            train_per_class=self.train_per_class,
            test_per_class=self.test_per_class,
            seed=seed,
        )
        return stream[: self.first_tasks]


def _located(place: Path, folder: Path | None) -> Path:
    """The path if it exists, else the same name in the user's folders of data sets."""
    moved = [given / place.name for given in catalog.given_folders(folder)]
    return next((path for path in (place, *moved) if path.exists()), place)


def _fitted(images: DataSet, pixels: int | None) -> DataSet:
    """Square images with side `pixels`, by default their own shorter side."""
    height, width = images.train.pixels.shape[2:]
    side = pixels or min(height, width)
    if (height, width) == (side, side):
        return images
    train, test = (middle_square(part, side) for part in (images.train, images.test))
    note = f"Images of {width} x {height} pixels: their centre squares are resized to {side} x {side}."
    return DataSet(images.name, images.class_names, train, test, images.groups, (*images.notes, note))


# --- choosing test images -------------------------------------------------------------------------------------------


def stable_share(labels: Tensor, keys: Sequence[bytes], share: float) -> Tensor:
    """A mask of the given share of each class (at least one image): those whose keys have the smallest hashes.

    Independent of the order of the images and of seeds, and additional images hardly change it.
    """
    ranked = sorted(range(len(keys)), key=lambda row: (hashlib.sha256(keys[row]).digest(), row))
    order = torch.tensor(ranked, dtype=torch.int64)
    chosen = torch.zeros(len(keys), dtype=torch.bool)
    for label in torch.unique(labels):
        rows = order[labels[order] == label]
        count = min(round(share * len(rows)), len(rows) - 2)  # leaves one for training and one for validation
        chosen[rows[: max(1, count)]] = True
    return chosen


# --- folders of pictures --------------------------------------------------------------------------------------------


def _read_folders(name: str, places: Sequence[Path], pixels: int, test: float | None, as_tasks: bool) -> DataSet:
    _check_memory(sum(len(picture_files(part)) for place in places for part in _parts(place)), pixels)
    pairs = [_read_parts(place, pixels, test) for place in places]
    groups = [train.class_names for train, _ in pairs]
    owner: dict[str, Path] = {}
    for place, names in zip(places, groups, strict=True):
        for class_name in names:
            if class_name in owner:
                raise UserError(
                    f"The class '{class_name}' is in two folders, {owner[class_name]} and {place}: a class belongs to "
                    "one task. Rename or move one of them."
                )
            owner[class_name] = place
    offsets = [0, *accumulate(map(len, groups))]
    train, test_images = (
        Images.join([_moved(pair[part].images, offset) for pair, offset in zip(pairs, offsets, strict=False)])
        for part in (0, 1)
    )
    train, test_images = without_colour(train, test_images)
    colour = "grey" if train.pixels.shape[1] == 1 else "colour"
    notes = [
        f"{len(train) + len(test_images)} pictures of {len(owner)} classes, {colour}: pictures of other sizes are "
        f"cropped to their centre square and resized to {pixels} x {pixels} pixels."
    ]
    skipped = [file for pair in pairs for part in pair for file in part.skipped]
    if skipped:
        reasons = listed(f"{file.path.name} ({file.reason})" for file in skipped)
        notes.append(f"Skipped: {reasons}.")
    return DataSet(name, tuple(owner), train, test_images, tuple(groups) if as_tasks else None, tuple(notes))


def _read_parts(folder: Path, pixels: int, test: float | None) -> tuple[Pictures, Pictures]:
    """Training and test pictures: from `train/` and `test/`, or by a stable split of all pictures."""
    if _parts(folder) == [folder]:
        # At least one each for training, validation and test.
        pictures = read_folder(folder, pixels, least_images=3, least_classes=1)
        tests = stable_share(
            pictures.images.labels,
            [readable(path.name).encode() for path in pictures.paths],
            test or DEFAULT_TEST_SHARE,
        )
        return pictures.part(~tests), pictures.part(tests, with_skipped=False)
    if test is not None:
        raise UserError(f"{folder} has its own 'test' folder: remove data.test.")
    train = read_folder(folder / "train", pixels, least_images=2, least_classes=1)
    tested = read_folder(folder / "test", pixels, least_images=1, least_classes=1)
    for here, there, parts in ((train, tested, ("train", "test")), (tested, train, ("test", "train"))):
        if lacking := [name for name in here.class_names if name not in there.class_names]:
            raise UserError(
                f"The class '{lacking[0]}' is in {folder / parts[0]} but not in {folder / parts[1]}: every class needs "
                "pictures in both."
            )
    return train, tested


def _parts(folder: Path) -> list[Path]:
    """The folders that contain the classes: `train` and `test`, unless these are class names themselves."""
    parts = [folder / "train", folder / "test"]
    split_already = all(part.is_dir() and any(inner.is_dir() for inner in part.iterdir()) for part in parts)
    return parts if split_already else [folder]


def _moved(images: Images, offset: int) -> Images:
    return Images(images.pixels, images.labels + offset)


def _check_memory(count: int, pixels: int) -> None:
    needed, limit = count * 3 * pixels**2, (machine.memory_bytes() or 2**36) // 2
    if needed > limit:
        raise UserError(
            f"{count} pictures of {pixels} x {pixels} pixels need {needed / 1e9:.0f} GB of memory, too much for this "
            "machine: reduce data.pixels."
        )


@lru_cache(maxsize=16)
def _folders_outline(places: tuple[Path, ...]) -> Outline:
    """Cached, because a grid calls it often. A share that is held out for testing counts as training images."""
    trained = [part for place in places for part in _parts(place)[:1]]
    sizes = set[tuple[int, int]]()
    for path in (file for place in places for part in _parts(place) for file in picture_files(part)):
        if len(sizes) > 1:
            break
        try:
            sizes.add(picture_size(path))
        except DataError:
            continue  # reported as skipped when the pictures are read
    side = min(sizes.pop()) if len(sizes) == 1 else None
    files = [file for part in trained for file in picture_files(part)]
    return Outline(side, len(files), len({file.parent for file in files}))


# --- arrays ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _npz_outline(path: Path) -> Outline:
    pixels, labels = read_npz_arrays(path).train
    return Outline(int(min(pixels.shape[2:])), len(labels), len(np.unique(labels)))


def _read_npz(path: Path, test: float | None) -> DataSet:
    arrays = read_npz_arrays(path)
    parts = [part for part in (arrays.train, arrays.test) if part is not None]
    found = np.unique(np.concatenate([labels for _, labels in parts]))
    names = arrays.class_names
    if names is None:  # labels may be any integers, which become the class names
        names = tuple(str(label) for label in found)
        parts = [(pixels, np.searchsorted(found, labels)) for pixels, labels in parts]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: 'class_names' contains duplicates.")
    images = [as_images(path, pixels, labels, len(names)) for pixels, labels in parts]
    if len(images) == 1:
        every = images[0]
        tests = stable_share(
            every.labels, [image.numpy().tobytes() for image in every.pixels], test or DEFAULT_TEST_SHARE
        )
        images = [every[~tests], every[tests]]
    elif test is not None:
        raise UserError(f"{path} has its own 'test_images': remove data.test.")
    if images[0].pixels.shape[1:] != images[1].pixels.shape[1:]:
        raise DataError(f"{path}: 'images' and 'test_images' differ in size or channels.")
    return DataSet(path.stem, names, images[0], images[1])
