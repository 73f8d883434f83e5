"""Where an experiment's images come from: a data set by name, folders of pictures, or arrays in an npz file.

| `data:` | images | tasks |
|---|---|---|
| `set: NAME` | a data set of the catalogue | by `classes_per_task`, `sizes` or `groups` |
| `folder: PATH` | one folder of pictures for each class | the same |
| `folders: [PATH, ...]` | several such folders | one for each of them, unless told otherwise |
| `npz: PATH` | arrays `images` and `labels` | by `classes_per_task`, `sizes` or `groups` |

Whatever has no test images of its own gives up a share of them, chosen by file name or content and never by the seed.
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
from clom.data.images import DataSet, Images, middle_square, without_colour
from clom.data.stream import Stream, split
from clom.errors import DataError, UserError
from clom.files import absolute
from clom.settings import Settings

DEFAULT_TEST_SHARE = 0.2
"""Share of the images that test where nobody says otherwise."""
DEFAULT_PIXELS = 32
"""As in the paper; for pictures that differ in size or are larger than `MAX_NATURAL_PIXELS`."""
MIN_PIXELS, MAX_NATURAL_PIXELS, MAX_PIXELS = 8, 64, 512
_SOURCES = ("set", "folder", "folders", "npz")


class DataSettings(Settings):
    """Which images, and how they become tasks. Relative paths are relative to the working directory."""

    set: str | None = None
    folder: Path | None = None
    folders: tuple[Path, ...] | None = None
    npz: Path | None = None
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the images that test, where the source has no test images of its own."""
    pixels: Annotated[int, Field(ge=MIN_PIXELS, le=MAX_PIXELS)] | None = None
    """Side of the images: the middle square of each is resized to it."""
    classes_per_task: int | None = None
    sizes: tuple[int, ...] | None = None
    groups: tuple[tuple[str, ...], ...] | None = None
    order_seed: int | None = None
    validation: float = 0.1
    train_per_class: int | None = None
    test_per_class: int | None = None

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
            raise UserError(f"An experiment's data name exactly one of {', '.join(_SOURCES)}; {found}.")
        if self.set is not None and self.test is not None:
            raise UserError(f"The data set '{self.set}' has test images of its own: leave out data.test.")
        if self.folders is not None and not self.folders:
            raise UserError("data.folders is empty: name one folder for each task.")
        return self

    @model_serializer(mode="wrap")
    def _without_unused(self, dump: Callable[[DataSettings], dict[str, Any]]) -> dict[str, Any]:
        """Sources that are not used are left out, so that a run on a named set is recorded as it always was."""
        unused = {name for name in (*_SOURCES, "test", "pixels") if getattr(self, name) is None}
        return {name: value for name, value in dump(self).items() if name not in unused}

    # --- what it stands for ---

    @property
    def name(self) -> str:
        if self.set is not None:
            return self.set
        return self.npz.stem if self.npz is not None else listed(path.name for path in self._places)

    @property
    def _places(self) -> tuple[Path, ...]:
        return self.folders or tuple(path for path in (self.folder, self.npz) if path is not None)

    def available(self, folder: Path | None = None) -> bool:
        """Whether the images are on this machine, by the names of files alone."""
        if self.set is not None:
            return self.set in SETS and catalog.available(self.set, folder)
        return all(_located(place, folder).exists() for place in self._places)

    def resolved(self) -> DataSettings:
        """With a size of the images: where none is given, that of the pictures if all have the same, else the usual."""
        if self.pixels is not None or self.set is not None:
            return self
        side = _npz_side(self.npz) if self.npz is not None else _common_side(self._places)
        natural = side is not None and MIN_PIXELS <= side <= MAX_NATURAL_PIXELS
        return self.model_copy(update={"pixels": side if natural else DEFAULT_PIXELS})

    def load(self, folder: Path | None = None) -> DataSet:
        """The images. `folder` is where the user keeps data sets; pictures that have moved are looked for there."""
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
        """Images as tasks, wherever they come from."""
        return split(
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


def _located(place: Path, folder: Path | None) -> Path:
    """Where it is, or if it is not there any more, what is called so in the folders for data sets."""
    moved = [given / place.name for given in catalog.given_folders(folder)]
    return next((path for path in (place, *moved) if path.exists()), place)


def _fitted(images: DataSet, pixels: int | None) -> DataSet:
    """Square images of `pixels` a side, or of their own shorter side."""
    height, width = images.train.pixels.shape[2:]
    side = pixels or min(height, width)
    if (height, width) == (side, side):
        return images
    train, test = (middle_square(part, side) for part in (images.train, images.test))
    note = f"Images of {width} x {height} pixels: their middle squares are resized to {side} x {side}."
    return DataSet(images.name, images.class_names, train, test, images.groups, (*images.notes, note))


# --- which images test ----------------------------------------------------------------------------------------------


def stable_share(labels: Tensor, keys: Sequence[bytes], share: float) -> Tensor:
    """A mask over the images: of each class the share, at least one, whose keys have the smallest hashes.

    It depends on neither the order of the images nor a seed, and more images hardly change it.
    """
    ranked = sorted(range(len(keys)), key=lambda row: (hashlib.sha256(keys[row]).digest(), row))
    order = torch.tensor(ranked, dtype=torch.int64)
    chosen = torch.zeros(len(keys), dtype=torch.bool)
    for label in torch.unique(labels):
        rows = order[labels[order] == label]
        count = min(round(share * len(rows)), len(rows) - 2)  # one remains to train and one to validate
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
        f"{len(train) + len(test_images)} pictures of {len(owner)} classes, {colour}: those of another size are cut to "
        f"their middle square and resized to {pixels} x {pixels} pixels."
    ]
    skipped = [file for pair in pairs for part in pair for file in part.skipped]
    if skipped:
        reasons = listed(f"{file.path.name} ({file.reason})" for file in skipped)
        notes.append(f"Skipped: {reasons}.")
    return DataSet(name, tuple(owner), train, test_images, tuple(groups) if as_tasks else None, tuple(notes))


def _read_parts(folder: Path, pixels: int, test: float | None) -> tuple[Pictures, Pictures]:
    """Training and test pictures: what is in `train/` and `test/`, or all of them and a share."""
    if _parts(folder) == [folder]:
        # One to train, one to validate, one to test.
        pictures = read_folder(folder, pixels, least_images=3, least_classes=1)
        tests = stable_share(
            pictures.images.labels,
            [readable(path.name).encode() for path in pictures.paths],
            test or DEFAULT_TEST_SHARE,
        )
        return pictures.part(~tests), pictures.part(tests, with_skipped=False)
    if test is not None:
        raise UserError(f"{folder} has a folder 'test' of its own: leave out data.test.")
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
    """The folders that hold the classes: `train` and `test`, unless these are names of classes themselves."""
    parts = [folder / "train", folder / "test"]
    split_already = all(part.is_dir() and any(inner.is_dir() for inner in part.iterdir()) for part in parts)
    return parts if split_already else [folder]


def _moved(images: Images, offset: int) -> Images:
    return Images(images.pixels, images.labels + offset)


def _check_memory(count: int, pixels: int) -> None:
    needed, limit = count * 3 * pixels**2, (machine.memory_bytes() or 2**36) // 2
    if needed > limit:
        raise UserError(
            f"{count} pictures of {pixels} x {pixels} pixels take {needed / 1e9:.0f} GB of memory, too much for this "
            "machine: choose fewer pixels with data.pixels."
        )


@lru_cache(maxsize=16)
def _common_side(places: tuple[Path, ...]) -> int | None:
    """The shorter side of the pictures, if all have the same size. Looked at once, because a grid asks often."""
    sizes = set()
    for path in (file for place in places for part in _parts(place) for file in picture_files(part)):
        try:
            sizes.add(picture_size(path))
        except DataError:
            continue  # whoever reads the pictures tells which were skipped
        if len(sizes) > 1:
            return None
    return min(sizes.pop()) if sizes else None


# --- arrays ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _npz_side(path: Path) -> int:
    height, width = read_npz_arrays(path).train[0].shape[2:]
    return int(min(height, width))


def _read_npz(path: Path, test: float | None) -> DataSet:
    arrays = read_npz_arrays(path)
    parts = [part for part in (arrays.train, arrays.test) if part is not None]
    found = np.unique(np.concatenate([labels for _, labels in parts]))
    names = arrays.class_names
    if names is None:  # labels may be any numbers, which are then the names
        names = tuple(str(label) for label in found)
        parts = [(pixels, np.searchsorted(found, labels)) for pixels, labels in parts]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: two of its 'class_names' are the same.")
    images = [as_images(path, pixels, labels, len(names)) for pixels, labels in parts]
    if len(images) == 1:
        every = images[0]
        tests = stable_share(
            every.labels, [image.numpy().tobytes() for image in every.pixels], test or DEFAULT_TEST_SHARE
        )
        images = [every[~tests], every[tests]]
    elif test is not None:
        raise UserError(f"{path} has 'test_images' of its own: leave out data.test.")
    if images[0].pixels.shape[1:] != images[1].pixels.shape[1:]:
        raise DataError(f"{path}: 'images' and 'test_images' differ in size or channels.")
    return DataSet(path.stem, names, images[0], images[1])
