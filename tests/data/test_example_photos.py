"""Generated example photos: the folders, and pictures that differ and show something."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from clom.data.example_photos import SIZE, TASKS, write_example_photos
from clom.data.folders import read_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_example_photos(folder, per_class=5, per_class_new=2)
    return folder


def test_folders_for_training_and_inference(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["new", "other", "patterns", "shapes"]
    for task, classes in TASKS.items():
        pictures = read_folder(folder / task, 32)
        assert pictures.class_names == tuple(sorted(classes))
        assert len(pictures.images) == 15
        assert not pictures.skipped
    assert len(list(folder.glob("new/*/*.png"))) == 12
    assert len(list(folder.glob("other/*.png"))) == 2


def test_all_pictures_differ(folder: Path) -> None:
    contents = [path.read_bytes() for path in folder.rglob("*.png")]
    assert len(set(contents)) == len(contents) == 44


def test_pictures_are_not_empty(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        image = Image.open(path)
        assert image.size == (SIZE, SIZE)
        colours = image.getcolors(SIZE * SIZE)
        assert colours is not None
        most = max(count for count, _ in colours)
        assert most < 0.92 * SIZE * SIZE, path


def test_pictures_depend_on_the_seed(folder: Path, tmp_path: Path) -> None:
    write_example_photos(tmp_path / "same", per_class=1, per_class_new=1)
    write_example_photos(tmp_path / "else", per_class=1, per_class_new=1, seed=7)
    name = "shapes/stars/00.png"
    same, other, first = (path / name for path in (tmp_path / "same", tmp_path / "else", folder))
    assert same.read_bytes() == first.read_bytes() != other.read_bytes()
