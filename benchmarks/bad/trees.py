"""Bad Tiny-ImageNet trees and archives."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random

from PIL import Image

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil, spoil_file
from benchmarks.bad.places import in_folder, load, zip_of
from clom.data import catalog

# --- Tiny-ImageNet ---------------------------------------------------------------------------------------------------

_TINY = "tiny-imagenet-200"


def picture(side: int = 64, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    target = io.BytesIO()
    Image.new(mode, (side, side)).save(target, kind)
    return target.getvalue()


def _write_tiny(folder: Path) -> Path:
    base = folder / _TINY
    for wnid in ("n01", "n02"):
        (base / "train" / wnid / "images").mkdir(parents=True)
        (base / "train" / wnid / "images" / f"{wnid}_0.JPEG").write_bytes(picture())
    (base / "val" / "images").mkdir(parents=True)
    for number in range(2):
        (base / "val" / "images" / f"val_{number}.JPEG").write_bytes(picture())
    (base / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\nval_1.JPEG\tn02\t0\t0\n")
    (base / "wnids.txt").write_text("n02\nn01\n")
    (base / "words.txt").write_text("n01\tfish, thing\nn02\tbird\n")
    return base


def _tiny_with(name: str, content: bytes | None) -> Make:
    def make(folder: Path, randomness: Random) -> None:
        path = _write_tiny(folder) / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    return make


def _tiny_special() -> Mapping[str, Make]:
    annotations, one, words = "val/val_annotations.txt", "train/n01/images/n01_0.JPEG", "words.txt"
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(x) (w) file\n%%EOF\n"
    contents: dict[str, tuple[str, bytes | None]] = {
        "wnids that climb": ("wnids.txt", b"../../..\nn01\n"),
        "wnids with zero bytes": ("wnids.txt", b"n\x0001\nn02\n"),
        "wnids not text": ("wnids.txt", b"\xff\xfe\xff"),
        "wnids too long": ("wnids.txt", b"n" * 5000),
        "no wnids": ("wnids.txt", b""),
        "annotation that climbs": (annotations, b"../../x\tn01\t0\n"),
        "annotation absent": (annotations, b"val_9.JPEG\tn01\n"),
        "annotation zero bytes": (annotations, b"val\x00.JPEG\tn01\n"),
        "annotation name too long": (annotations, b"v" * 5000 + b"\tn01\n"),
        "annotation empty line": (annotations, b"\n\n"),
        "annotation unknown class": (annotations, b"val_0.JPEG\tn77\n"),
        "annotation lines endless": (annotations, b"x" * 10**6),
        "half a million annotations": (annotations, b"val_0.JPEG\tn01\n" * 500_000),
        "annotations empty": (annotations, b""),
        "annotations gone": (annotations, None),
        "words not text": (words, b"\xff\xff"),
        "words odd": (words, b"n01\nn01\t\n\t\t\t\nn02\t,,,"),
        "picture gone": (one, None),
        "picture empty": (one, b""),
        "picture is text": (one, b"hello"),
        "picture is postscript": (one, postscript),
        "picture is a program": (one, b"#!/bin/sh\nmkdir executed\n"),
        "picture of 63 pixels": (one, picture(63)),
        "picture of no colour": (one, picture(mode="L")),
        "picture is png": (one, picture(kind="PNG")),
    }
    good = picture()
    contents |= {f"picture cut after {length}": (one, good[:length]) for length in range(0, len(good), 64)}
    found = {name: _tiny_with(*content) for name, content in contents.items()}

    def pipe(folder: Path, randomness: Random) -> None:
        path = _write_tiny(folder) / one
        path.unlink()
        os.mkfifo(path)

    def loop(folder: Path, randomness: Random) -> None:
        path = _write_tiny(folder) / one
        path.unlink()
        path.symlink_to(path)

    def nothing(folder: Path, randomness: Random) -> None:
        (folder / _TINY / "train").mkdir(parents=True)
        (folder / _TINY / "val" / "images").mkdir(parents=True)
        (folder / _TINY / annotations).write_bytes(b"")

    def annotations_folder(folder: Path, randomness: Random) -> None:
        path = _write_tiny(folder) / annotations
        path.unlink()
        path.mkdir()

    extra = {"a pipe": pipe, "a link to itself": loop, "nothing inside": nothing, "list a folder": annotations_folder}
    return {**found, **extra}


def _tiny_chance(folder: Path, randomness: Random) -> None:
    base = _write_tiny(folder)
    spoil_file(randomness.choice(sorted(path for path in base.rglob("*") if path.is_file())), randomness)


# --- archives --------------------------------------------------------------------------------------------------------


def _archive(folder: Path) -> Path:
    return next(folder.glob("archive.*"))


def _unpack(folder: Path) -> None:
    target = folder / "inside"
    target.mkdir()
    catalog.unpack(_archive(folder), target)
    if found := [path for path in folder.iterdir() if path.name not in ("inside", _archive(folder).name)]:
        raise AssertionError(f"the archive wrote outside of its folder: {found}")


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def _archive_special() -> Mapping[str, Make]:
    contents = {
        "zip: climbs": ("zip", zip_of({"../executed": b"x"})),
        "zip: absolute": ("zip", zip_of({"/tmp/../executed": b"x"})),
        "zip: name twice": ("zip", zip_of({"a": b"x", "a/b": b"y"})),
        "zip: name too long": ("zip", zip_of({"n" * 5000: b"x"})),
        "zip: empty": ("zip", b""),
        "zip: text": ("zip", b"no archive"),
        "tar: climbs": ("tar.gz", tar_of((_member("../executed"), b"x"))),
        "tar: absolute": ("tar.gz", tar_of((_member("/executed-by-absolute-name"), b"x"))),
        "tar: link outside": (
            "tar.gz",
            tar_of((_member("a", tarfile.SYMTYPE, "../.."), b""), (_member("a/executed"), b"x")),
        ),
        "tar: hard link outside": ("tar.gz", tar_of((_member("a", tarfile.LNKTYPE, "../../x"), b""))),
        "tar: device": ("tar.gz", tar_of((_member("a", tarfile.CHRTYPE), b""))),
        "tar: pipe": ("tar.gz", tar_of((_member("a", tarfile.FIFOTYPE), b""))),
        "tar: empty": ("tar.gz", b""),
        "tar: text": ("tar.gz", b"no archive"),
        "tar: name too long": ("tar.gz", tar_of((_member("n" * 5000), b"x"))),
        "tar: file and folder": ("tar.gz", tar_of((_member("a"), b"x"), (_member("a/b"), b"y"))),
    }
    return {name: in_folder(f"archive.{ending}", content) for name, (ending, content) in contents.items()}


def _archive_chance(folder: Path, randomness: Random) -> None:
    content = {"zip": zip_of({"a/b": b"x" * 500}), "tar.gz": tar_of((_member("a/b"), b"x" * 500))}
    ending = randomness.choice(sorted(content))
    in_folder(f"archive.{ending}", spoil(content[ending], randomness))(folder, randomness)


def readers() -> list[Reader]:
    return [
        Reader("Tiny-ImageNet", _tiny_special, _tiny_chance, partial(load, "tiny-imagenet")),
        Reader("archives", _archive_special, _archive_chance, _unpack),
    ]
