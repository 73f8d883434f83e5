"""Photos in zip files: read like a folder, and never trusted."""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from clom.data.folders import read_folder
from clom.errors import DataError, UserError
from clom.photos import archives
from clom.photos.archives import PhotoFiles, ZipLimits, ZipPhotos, is_zip, read_zip
from photos.pictures import write_pictures


def pack(target: Path, folder: Path, inside: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{inside}{file.relative_to(folder)}")
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "photos", "red", "green", count=5)


@pytest.mark.parametrize("inside", ["", "holiday/", "home/me/holiday/"])
def test_a_packed_folder_is_read_like_the_folder(folder: Path, tmp_path: Path, inside: str) -> None:
    (folder / "notes.txt").write_text("loose")
    (folder / "red" / "broken.png").write_bytes(b"no picture")
    (folder / "red" / ".hidden.png").write_bytes(b"x")
    path = pack(tmp_path / "photos.ZIP", folder, inside)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"__MACOSX/{inside}red/._0.png", b"x")
        archive.writestr(f"{inside}red/deep/1.png", b"x")
    assert is_zip(path)
    told: list[object] = []
    found = read_zip(path, 24, on_classes=told.append, on_file=lambda done, total: told.append((done, total)))
    plain = read_folder(folder, 24)
    assert found.class_names == plain.class_names
    assert torch.equal(found.images.pixels, plain.images.pixels)
    assert torch.equal(found.images.labels, plain.images.labels)
    assert found.sizes == plain.sizes
    assert found.file_names == plain.file_names
    assert told[0] == ("green", "red")
    assert told[-1] == (11, 11)
    assert {file.path.name: file.reason.partition(":")[0] for file in found.skipped} == {
        "broken.png": "not a picture, or an unknown format",
        "notes.txt": "outside the class folders",
        "1.png": "a folder inside a class folder",
    }


def test_one_class_is_not_taken_for_an_enclosing_folder(tmp_path: Path) -> None:
    path = pack(tmp_path / "one.zip", write_pictures(tmp_path / "one", "red", count=2))
    assert read_zip(path, 8, least_images=1, least_classes=1).class_names == ("red",)
    with pytest.raises(UserError, match="only one class, 'red'"):
        read_zip(path, 8)


def test_folders_of_tasks_are_no_classes(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tasks.zip", "w") as archive:
        for task in ("train", "test"):
            archive.write(folder / "red" / "0.png", f"{task}/red/0.png")
    with pytest.raises(UserError, match="no class folders"):
        read_zip(tmp_path / "tasks.zip", 8)


@pytest.mark.parametrize(
    "name",
    ["../outside.png", "red/../../outside.png", "/etc/outside.png", "C:\\outside.png", "red\\..\\..\\outside.png"],
)
def test_names_that_lead_out_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / "evil.zip", folder)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="leads out of the zip file"):
        read_zip(path, 8)
    assert sorted(tmp_path.rglob("*")) == before


def test_bombs_are_refused_before_anything_is_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("red", "green"):
            for number in range(5):
                archive.writestr(f"{name}/{number}.png", b"\0" * 1_000_000)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it is being unpacked"))
    with pytest.raises(DataError, match=r"would unpack to 0.0 GB: more than the limit"):
        read_zip(path, 8, limits=ZipLimits(total_bytes=9_000_000))
    with pytest.raises(DataError, match="has 10 files: more than the limit of 9"):
        read_zip(path, 8, limits=ZipLimits(files=9))


def test_a_photo_that_is_too_large_is_skipped(folder: Path, tmp_path: Path) -> None:
    (folder / "red" / "large.png").write_bytes(b"\0" * 100_000)
    path = pack(tmp_path / "photos.zip", folder)
    found = read_zip(path, 8, limits=ZipLimits(photo_bytes=99_999))
    assert [(file.path.name, file.reason) for file in found.skipped] == [("large.png", "too large: more than 0 MB")]


def test_a_member_that_lies_about_its_size_yields_no_more_than_it_claims(folder: Path, tmp_path: Path) -> None:
    path = pack(tmp_path / "photos.zip", folder)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("red/liar.png", b"\0" * 5_000_000)
    content = path.read_bytes()
    assert content.count(struct.pack("<I", 5_000_000)) == 2
    path.write_bytes(content.replace(struct.pack("<I", 5_000_000), struct.pack("<I", 50)))
    with ZipPhotos(path) as photos:
        liar = next(file for file in photos.files if file.name == "liar.png")
        with pytest.raises(DataError, match="damaged in the zip file"):
            photos.read(liar, 8)


def test_a_list_of_members_that_is_too_long_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_DIRECTORY_BYTES", 70_000)
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1000):
            archive.writestr(f"red/{number:030}.png", b"")
    with pytest.raises(DataError, match="lists too many files"):
        read_zip(path, 8)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_skipped(folder: Path, tmp_path: Path, method: int) -> None:
    """Python would unpack any amount at once."""
    path = pack(tmp_path / "photos.zip", folder, method=method)
    with pytest.raises(UserError, match="unusual way"):
        read_zip(path, 8)


def test_encrypted_and_damaged_members_are_skipped(folder: Path, tmp_path: Path) -> None:
    for number in range(2):
        (folder / "red" / f"z{number}.png").write_bytes(os.urandom(2000))
    path = pack(tmp_path / "photos.zip", folder)
    content = bytearray(path.read_bytes())
    for number, (name, change) in enumerate((("z0.png", 6), ("z1.png", 40))):
        header = content.index(f"red/{name}".encode()) - 30
        if number == 0:
            content[header + change] |= 1
            directory = content.rindex(f"red/{name}".encode()) - 46
            content[directory + 8] |= 1
        else:
            content[header + 30 + 10 + change] ^= 0xFF
    path.write_bytes(bytes(content))
    reasons = {file.path.name: file.reason for file in read_zip(path, 8).skipped}
    assert reasons["z0.png"] == "protected by a password"
    assert reasons["z1.png"].startswith(("damaged in the zip file", "not a picture"))


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06" + b"\xff" * 18, b"PK\x03\x04" + b"\0" * 40])
def test_files_that_are_no_zip_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "photos.zip"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"photos\.zip"):
        read_zip(path, 8)


def test_every_byte_of_a_zip_file_can_be_wrong(tmp_path: Path) -> None:
    """Whatever is damaged, it is a user's error or a skipped file."""
    folder = write_pictures(tmp_path / "photos", "red", "green", count=2)
    whole = pack(tmp_path / "photos.zip", folder).read_bytes()
    randomness = torch.Generator().manual_seed(0)
    path = tmp_path / "damaged.zip"
    for _ in range(300):
        content = bytearray(whole)
        place, value = (int(torch.randint(0, high, (1,), generator=randomness)) for high in (len(whole), 256))
        content[place] = value
        path.write_bytes(bytes(content))
        with contextlib.suppress(UserError):
            read_zip(path, 8, least_images=1, least_classes=1)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "photos.zip")
    assert not is_zip(tmp_path / "photos.zip")
    with pytest.raises(DataError, match="not a file"):
        ZipPhotos(tmp_path / "photos.zip")


def test_files_and_zip_files_together(folder: Path, tmp_path: Path) -> None:
    path = pack(tmp_path / "photos.zip", folder)
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    single = folder / "red" / "0.png"
    with PhotoFiles([single, path, tmp_path / "bad.zip"]) as photos:
        assert photos.paths[0] == single
        assert photos.paths[1:] == [path / name / f"{n}.png" for name in ("green", "red") for n in range(5)]
        assert [file.path.name for file in photos.skipped] == ["bad.zip"]
        assert torch.equal(photos.read(single, 8)[0], photos.read(path / "red" / "0.png", 8)[0])
        with pytest.raises(DataError, match="no such file"):
            photos.read(tmp_path / "absent.png", 8)
