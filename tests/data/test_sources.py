"""The data of an experiment: named sets, folders of pictures and npz files, split into tasks alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clom.data.catalog import register_dataset
from clom.data.images import DataSet, Images, Outline
from clom.data.sources import DataSettings, stable_share
from clom.errors import DataError, UserError


def picture(path: Path, shade: int, size: tuple[int, int] = (16, 16), grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade if grey else 255 - shade)).save(path)


def class_folders(folder: Path, counts: Mapping[str, int], **options: Any) -> Path:
    for name, count in counts.items():
        for number in range(count):
            picture(folder / name / f"{number}.png", 10 * number, **options)
    return folder


def shades(images: Images) -> list[int]:
    return sorted(images.pixels[:, 0, 0, 0].tolist())


# --- one folder ---


def test_a_folder_of_class_folders_is_split_into_tasks(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "birds", {"wren": 10, "robin": 10, "tit": 10})
    data = DataSettings(folder=folder, sizes=(2, 1))
    stream = data.stream(None, seed=0)
    assert stream.class_names == (("robin", "tit"), ("wren",))
    assert stream.image_shape == (3, 16, 16)
    assert [len(images) for images in stream.tests] == [4, 2]
    assert [len(task.train) + len(task.validation) for task in stream] == [16, 8]
    by_name = DataSettings(folder=folder, groups=(("wren", "robin"),)).stream(None, seed=0)
    assert by_name.class_names == (("wren", "robin"),)
    shuffled = DataSettings(folder=folder, classes_per_task=1, order_seed=1).stream(None, seed=0)
    assert shuffled.class_names == (("tit",), ("wren",), ("robin",))


def test_test_images_depend_only_on_file_names(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "birds", {"wren": 20, "tit": 10})
    data = DataSettings(folder=folder, sizes=(1, 1), test=0.3)
    tests = [shades(images) for images in data.stream(None, seed=0).tests]
    assert [len(found) for found in tests] == [3, 6]
    assert [shades(images) for images in data.stream(None, seed=5).tests] == tests, "must not depend on the seed"
    resized = DataSettings(folder=folder, sizes=(1, 1), test=0.3, pixels=8)
    assert [shades(images) for images in resized.stream(None, seed=0).tests] == tests, "must not depend on the size"
    trained = {shade for task in data.stream(None, 0) for shade in (*shades(task.train), *shades(task.validation))}
    assert not set(tests[1]) & {shade for shade in trained if shade >= 100}
    picture(folder / "wren" / "another.png", 250)
    moved = set(tests[1]) - set(shades(data.stream(None, seed=0).tests[1]))
    assert len(moved) <= 1, "a new picture replaces at most one"


def test_train_and_test_folders_are_used(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"wren": 5, "tit": 4})
    class_folders(tmp_path / "test", {"wren": 1, "tit": 2})
    found = DataSettings(folder=tmp_path, sizes=(2,)).load()
    assert found.class_names == ("tit", "wren")
    assert (len(found.train), len(found.test)) == (9, 3)
    with pytest.raises(UserError, match=r"has its own 'test' folder: remove data.test"):
        DataSettings(folder=tmp_path, sizes=(2,), test=0.2).load()
    class_folders(tmp_path / "test", {"owl": 1})
    with pytest.raises(UserError, match=r"'owl' is in .*test but not in .*train: every class needs pictures in both"):
        DataSettings(folder=tmp_path, sizes=(2,)).load()


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    found = DataSettings(folder=class_folders(tmp_path, {"train": 5, "test": 5}), sizes=(2,)).load()
    assert found.class_names == ("test", "train")
    assert len(found.test) == 2


# --- sizes and colours ---


def test_pictures_of_one_size_keep_it(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, {"wren": 3, "tit": 3}, size=(24, 20))
    data = DataSettings(folder=folder, sizes=(2,)).resolved()
    assert data.pixels == 20
    assert data.load().train.pixels.shape[1:] == (3, 20, 20)


@pytest.mark.parametrize("odd", [(17, 16), (100, 100)])
def test_pictures_of_several_sizes_get_the_default_size(tmp_path: Path, odd: tuple[int, int]) -> None:
    folder = class_folders(tmp_path, {"wren": 3, "tit": 3})
    picture(folder / "tit" / "z.png", 7, odd)
    assert DataSettings(folder=folder, sizes=(2,)).resolved().pixels == 32
    assert DataSettings(folder=folder, sizes=(2,), pixels=12).load().train.pixels.shape[1:] == (3, 12, 12)


def test_large_pictures_get_the_default_size(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, {"wren": 3, "tit": 3}, size=(65, 65))
    found = DataSettings(folder=folder, sizes=(2,)).load()
    assert found.train.pixels.shape[1:] == (3, 32, 32)
    assert "centre square and resized to 32 x 32 pixels" in found.notes[0]


def test_what_is_known_before_anything_is_read(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"wren": 5, "tit": 4})
    class_folders(tmp_path / "test", {"wren": 1, "tit": 2})
    data = DataSettings(folder=tmp_path, sizes=(2,))
    assert data.outline() == Outline(16, 9, 2)
    assert data.n_train() == 9
    assert DataSettings(folder=tmp_path, sizes=(2,), train_per_class=3).n_train() == 6
    path = saved(tmp_path / "a.npz", **arrays(12, (10, 14, 3)))
    assert DataSettings(npz=path, sizes=(2,)).outline() == Outline(10, 12, 2)
    for name in ("digits", "mnist"):
        assert DataSettings(set=name).outline() is not None
    found = DataSettings(set="digits", sizes=(10,))
    images = found.load().train
    assert found.outline() == Outline(images.pixels.shape[2], len(images), 10)


def test_the_number_of_classes_of_all_tasks() -> None:
    assert DataSettings(set="digits", classes_per_task=2).n_classes() == 10
    assert DataSettings(set="digits", sizes=(3, 1)).n_classes() == 4
    assert DataSettings(set="digits", groups=(("0", "4"), ("7",))).n_classes() == 3


def test_grey_pictures_have_one_channel_unless_one_has_colour(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, {"wren": 3, "tit": 3}, grey=True)
    found = DataSettings(folder=folder, sizes=(2,)).load()
    assert found.train.pixels.shape[1] == found.test.pixels.shape[1] == 1
    picture(folder / "tit" / "z.png", 7)
    assert DataSettings(folder=folder, sizes=(2,)).load().train.pixels.shape[1] == 3


def test_skipped_files_are_reported(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, {"wren": 3, "tit": 3})
    (folder / "tit" / "notes.txt").write_text("not a picture")
    notes = DataSettings(folder=folder, sizes=(2,)).stream(None, 0).notes
    assert notes[0].startswith("6 pictures of 2 classes, colour")
    assert notes[1] == "Skipped: notes.txt (not a picture, or an unknown format)."


# --- several folders ---


def test_every_folder_is_a_task(tmp_path: Path) -> None:
    folders = (
        class_folders(tmp_path / "tools", {"saw": 5, "axe": 4, "file": 6}),
        class_folders(tmp_path / "birds", {"wren": 8}, size=(9, 8)),
    )
    stream = DataSettings(folders=folders).stream(None, 0)
    assert stream.class_names == (("axe", "file", "saw"), ("wren",)), "in the order given"
    assert stream.tests[0].labels.tolist() == [0, 1, 2]
    assert stream.tests[1].labels.tolist() == [0, 0]
    assert stream.image_shape == (3, 32, 32)
    assert stream.name == "tools, birds"
    one_each = DataSettings(folders=folders, classes_per_task=1).stream(None, 0)
    assert [names[0] for names in one_each.class_names] == ["axe", "file", "saw", "wren"]


def test_a_class_in_two_folders_is_rejected(tmp_path: Path) -> None:
    folders = tuple(class_folders(tmp_path / name, {"wren": 3, f"{name} tit": 3}) for name in ("a", "b"))
    with pytest.raises(UserError, match=r"class 'wren' is in two folders, .*a and .*b: a class belongs to one task"):
        DataSettings(folders=folders).load()


def test_folders_without_enough_pictures_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^There is no folder .*birds\.$"):
        DataSettings(folder=tmp_path / "birds", sizes=(1,)).load()
    folder = class_folders(tmp_path / "some", {"wren": 4, "tit": 1})
    with pytest.raises(
        UserError, match=r"^Each class needs at least 3 pictures; these in .*some have fewer: 'tit' 1\.$"
    ):
        DataSettings(folder=folder, sizes=(2,)).load()
    (tmp_path / "more" / "wren").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"^Each class needs at least 3 pictures; these in .*more have fewer: 'wren' 0\.$"
    ):
        DataSettings(folder=tmp_path / "more", sizes=(1,)).load()


def test_pictures_that_do_not_fit_into_memory_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = class_folders(tmp_path, {"wren": 4})
    monkeypatch.setattr("clom.machine.memory_bytes", lambda: 2 * 4 * 3 * 32 * 32)
    DataSettings(folder=folder, sizes=(1,), pixels=32).load()
    with pytest.raises(UserError, match=r"4 pictures of 33 x 33 pixels need .* reduce data.pixels"):
        DataSettings(folder=folder, sizes=(1,), pixels=33).load()


def test_pictures_that_have_moved_are_found_by_name(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "old" / "birds", {"wren": 4})
    data = DataSettings(folder=folder, sizes=(1,)).resolved()
    folder.rename(tmp_path / "birds")
    assert not data.available()
    assert data.available(tmp_path)
    assert len(data.load(tmp_path).train) == 3


# --- npz ---


def arrays(count: int = 12, shape: tuple[int, ...] = (10, 10, 3)) -> dict[str, np.ndarray]:
    pixels = np.arange(count, dtype=np.uint8).reshape(-1, *(1 for _ in shape)) + np.zeros(shape, np.uint8)
    return {"images": pixels, "labels": np.arange(count) % 2}


def saved(path: Path, **content: np.ndarray) -> Path:
    np.savez(path, **content)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("shape", "expected"), [((10, 10, 3), 3), ((3, 10, 10), 3), ((10, 10, 1), 1), ((1, 10, 10), 1), ((10, 10), 1)]
)
def test_npz_in_every_layout(tmp_path: Path, shape: tuple[int, ...], expected: int) -> None:
    found = DataSettings(npz=saved(tmp_path / "birds.npz", **arrays(shape=shape)), sizes=(1, 1)).load()
    assert (found.name, found.class_names) == ("birds", ("0", "1"))
    assert found.train.pixels.shape == (10, expected, 10, 10)
    assert found.test.pixels.shape == (2, expected, 10, 10)


def test_npz_test_images_depend_only_on_the_content(tmp_path: Path) -> None:
    content = arrays(40)
    path = saved(tmp_path / "a.npz", **content)
    order = np.random.default_rng(0).permutation(40)
    shuffled = saved(tmp_path / "b.npz", images=content["images"][order], labels=content["labels"][order])
    tests = [shades(DataSettings(npz=file, sizes=(2,)).load().test) for file in (path, shuffled)]
    assert tests[0] == tests[1]
    assert len(tests[0]) == 8


def test_npz_with_test_arrays_names_and_any_labels(tmp_path: Path) -> None:
    content = arrays()
    with_tests = {**content, "test_images": content["images"][:4], "test_labels": content["labels"][:4]}
    names = np.array(["wren", "tit"])
    found = DataSettings(npz=saved(tmp_path / "a.npz", **with_tests, class_names=names), sizes=(2,)).load()
    assert found.class_names == ("wren", "tit")
    assert (len(found.train), len(found.test)) == (12, 4)
    odd = {**with_tests, "labels": content["labels"] * 5 - 3, "test_labels": content["labels"][:4] * 5 - 3}
    found = DataSettings(npz=saved(tmp_path / "b.npz", **odd), sizes=(2,)).load()
    assert found.class_names == ("-3", "2")
    assert found.train.labels.tolist() == content["labels"].tolist()


def test_npz_images_are_cropped_to_squares(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", **arrays(shape=(10, 14, 3)))
    assert DataSettings(npz=path, sizes=(2,)).load().train.pixels.shape[2:] == (10, 10)
    found = DataSettings(npz=path, sizes=(2,), pixels=16).load()
    assert found.train.pixels.shape[2:] == (16, 16)
    assert found.notes == ("Images of 14 x 10 pixels: their centre squares are resized to 16 x 16.",)
    assert shades(found.train) == shades(DataSettings(npz=path, sizes=(2,)).load().train), (
        "constant images must not change"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(3, int)}, "expected 12 integers in 'labels'"),
        ({"images": np.zeros((12, 5, 5, 4), np.uint8)}, "expected 'images' to be uint8"),
        ({"images": np.zeros((12, 5, 5, 3))}, "found float64"),
        ({"test_images": np.zeros((2, 10, 10, 3), np.uint8)}, "both 'test_images' and 'test_labels'"),
        ({"class_names": np.array(["wren"])}, "expected labels from 0 to 0, found 0 to 1"),
        ({"class_names": np.array(["wren", "wren"])}, "'class_names' contains duplicates"),
        ({"class_names": np.array([1, 2])}, "expected 'class_names' to be a list of strings"),
    ],
)
def test_invalid_npz(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    path = saved(tmp_path / "a.npz", **{**arrays(), **change})
    with pytest.raises(DataError, match=message):
        DataSettings(npz=path, sizes=(2,)).load()


def test_missing_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^Cannot read .*a\.npz: No such file"):
        DataSettings(npz=tmp_path / "a.npz", sizes=(2,)).load()


# --- named sets ---


def test_named_set_may_be_resized() -> None:
    assert DataSettings(set="digits", classes_per_task=5).load().train.pixels.shape[1:] == (1, 8, 8)
    assert DataSettings(set="digits", classes_per_task=5, pixels=12).load().train.pixels.shape[1:] == (1, 12, 12)


def test_a_data_set_may_define_its_tasks() -> None:
    @register_dataset("grouped")
    def grouped() -> DataSet:
        images = Images(torch.zeros(9, 3, 8, 10, dtype=torch.uint8), torch.arange(9) % 3)
        return DataSet("grouped", ("a", "b", "c"), images, images, groups=(("c",), ("a", "b")))

    stream = DataSettings(set="grouped").stream(None, 0)
    assert stream.class_names == (("c",), ("a", "b"))
    assert stream.image_shape == (3, 8, 8), "cropped to squares"
    assert DataSettings(set="grouped").n_classes() is None, "unknown before it is read"


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of set, folder, folders, npz; it has none of them"),
        ({"set": "digits", "folder": "x"}, "it has set and folder"),
        ({"set": "digits", "test": 0.2}, "'digits' has its own test images"),
        ({"folders": []}, "data.folders is empty"),
    ],
)
def test_exactly_one_source(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataSettings.model_validate(settings)


def test_the_recorded_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(DataSettings(set="digits").model_dump(mode="json")) == [
        *("set", "classes_per_task", "sizes", "groups", "order_seed", "validation", "train_per_class"),
        "test_per_class",
    ]
    monkeypatch.chdir(tmp_path)
    own = DataSettings(folders=(Path("a"), Path("b")), pixels=16)
    dump = own.model_dump(mode="json")
    assert dump["folders"] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert "set" not in dump
    assert DataSettings.model_validate(dump) == own


def test_stable_share_leaves_enough_for_training() -> None:
    labels = torch.tensor([0] * 3 + [1] * 100)
    keys = [bytes([number]) for number in range(103)]
    tests = stable_share(labels, keys, 0.99)
    assert tests[:3].sum() == 1
    assert tests[3:].sum() == 98
