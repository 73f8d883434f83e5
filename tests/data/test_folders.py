"""Folders of pictures: every format and every kind of damage, in generated files."""

from __future__ import annotations

import os
import random
import resource
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clom.data.decoding import MAX_PIXELS
from clom.data.folders import OUTSIDE, Pictures, read_folder, read_picture
from clom.errors import DataError, UserError

SIZE = 16
RED, BLUE = (200, 20, 30), (10, 40, 220)


def halves(width: int = 40, height: int = 40) -> Image.Image:
    """Red above, blue below, so that the orientation is visible."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (0, height // 2, width, height))
    return image


def noise(seed: int = 0, width: int = 60, height: int = 50) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(width: int, height: int) -> bytes:
    """A small PNG file of a black picture that would need gigabytes when decoded."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    packer = zlib.compressobj(1)
    row = bytes(1 + 3 * width)
    body = b"".join(packer.compress(row) for _ in range(min(height, 200))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def make_class(folder: Path, count: int = 5, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise(seed + number).save(folder / f"{number}.png")
    return folder


def values_of(picture: torch.Tensor) -> set[int]:
    return set(picture.flatten().tolist())


def close_to(picture: torch.Tensor, row: int, colour: tuple[int, int, int], tolerance: int = 6) -> bool:
    seen = picture[:, row].float().mean(1)
    return bool((seen - torch.tensor(colour).float()).abs().max() <= tolerance)


# ------------------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize(
    "ending", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm", "tga", "ico", "jp2", "pcx", "sgi"]
)
def test_reads_every_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"picture.{ending}"
    halves().save(path)
    picture = read_picture(path, SIZE)
    assert (picture.dtype, picture.shape) == (torch.uint8, (3, SIZE, SIZE))
    assert picture.is_contiguous()
    assert close_to(picture, 2, RED, 10)
    assert close_to(picture, -3, BLUE, 10)


def test_the_file_extension_does_not_matter(tmp_path: Path) -> None:
    halves().save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert close_to(read_picture(tmp_path / "a.jpg", SIZE), 2, RED)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_every_exif_orientation_is_applied(ending: str, tmp_path: Path) -> None:
    upright = noise(width=48, height=32).resize((12, 8)).resize((48, 32), Image.Resampling.BICUBIC)
    turns = Image.Transpose
    stored = {  # the stored pixels for each orientation of the camera
        1: None,
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_90,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_270,
    }
    upright.save(tmp_path / "upright.png")
    expected = read_picture(tmp_path / "upright.png", SIZE).float()
    for orientation, turn in stored.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = upright if turn is None else upright.transpose(turn)
        path = tmp_path / f"{orientation}.{ending}"
        image.save(path, exif=exif, quality=98)
        assert (read_picture(path, SIZE).float() - expected).abs().mean() < 6, orientation


def test_a_picture_with_broken_exif_data_is_read(tmp_path: Path) -> None:
    for number, exif in enumerate(
        (b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    ):
        halves().save(tmp_path / f"{number}.jpg", exif=exif)
        assert close_to(read_picture(tmp_path / f"{number}.jpg", SIZE), 2, RED)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    halves().convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    halves().convert("CMYK").save(tmp_path / "a.tif")
    for name in ("a.jpg", "a.tif"):
        picture = read_picture(tmp_path / name, SIZE)
        assert close_to(picture, 2, RED, 12), name
        assert close_to(picture, -3, BLUE, 12), name


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bit_pictures_keep_their_brightness(ending: str, tmp_path: Path) -> None:
    for value, byte in ((0, 0), (257 * 100, 100), (65535, 255)):
        numbers = np.full((30, 20), value, np.uint16)
        Image.fromarray(numbers).save(tmp_path / f"a.{ending}")
        assert values_of(read_picture(tmp_path / f"a.{ending}", SIZE)) == {byte}


def test_values_without_a_known_range_are_rescaled(tmp_path: Path) -> None:
    ramp = np.linspace(-3, 5, 64, dtype=np.float32)[:, None].repeat(64, 1)
    Image.fromarray(ramp).save(tmp_path / "f.tif")
    Image.fromarray((ramp * 1e6).astype(np.int32)).save(tmp_path / "i.tif")
    Image.fromarray(np.full((8, 8), 3.5, np.float32)).save(tmp_path / "flat.tif")
    for name in ("f.tif", "i.tif"):
        column = read_picture(tmp_path / name, SIZE)[0, :, 0].int()
        assert column[0] < 10
        assert column[-1] > 245
        assert (column.diff() > 0).all()
    assert values_of(read_picture(tmp_path / "flat.tif", SIZE)) == {0}
    ramp[3, 3] = np.nan
    Image.fromarray(ramp).save(tmp_path / "nan.tif")
    with pytest.raises(DataError, match="NaN or infinite"):
        read_picture(tmp_path / "nan.tif", SIZE)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    seen = Image.new("RGBA", (40, 40), (0, 0, 0, 0))  # transparent black
    seen.paste((*BLUE, 255), (0, 20, 40, 40))
    seen.save(tmp_path / "rgba.png")
    Image.new("LA", (40, 40), (0, 0)).save(tmp_path / "la.png")
    palette = halves().quantize(4)
    palette.info["transparency"] = palette.getpixel((0, 0))
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "palette.gif")
    colour = halves()
    colour.save(tmp_path / "key.png", transparency=RED)
    for name in ("rgba.png", "palette.png", "palette.gif", "key.png"):
        picture = read_picture(tmp_path / name, SIZE)
        assert close_to(picture, 2, (255, 255, 255)), name
        assert close_to(picture, -3, BLUE), name
    assert values_of(read_picture(tmp_path / "la.png", SIZE)) == {255}


def test_colours_of_transparent_pixels_do_not_bleed(tmp_path: Path) -> None:
    image = Image.new("RGBA", (64, 64), (0, 255, 0, 0))
    image.paste((*RED, 255), (0, 32, 64, 64))
    image.save(tmp_path / "a.png")
    red, green, blue = read_picture(tmp_path / "a.png", 5)[:, 2, 2].tolist()  # the row on the edge
    assert red >= green - 1, "green from transparent pixels"
    assert abs(green - blue) < 12


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    for ending in ("gif", "webp", "png", "tif"):
        path = tmp_path / f"a.{ending}"
        Image.new("RGB", (20, 20), RED).save(path, save_all=True, append_images=[Image.new("RGB", (20, 20), BLUE)])
        assert close_to(read_picture(path, SIZE), 8, RED), ending


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_is_converted_to_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.jpg" if mode == "YCbCr" else "a.tif" if mode == "CMYK" else "a.png")
    image = Image.new("I;16", (9, 7), 30000) if mode == "I;16" else noise(width=9, height=7).convert(mode)
    image.save(path)
    assert read_picture(path, SIZE).shape == (3, SIZE, SIZE)


def test_the_centre_square_is_read(tmp_path: Path) -> None:
    wide = Image.new("RGB", (90, 30), RED)
    wide.paste(BLUE, (30, 0, 60, 30))
    wide.save(tmp_path / "wide.png")
    assert close_to(read_picture(tmp_path / "wide.png", SIZE), 0, BLUE, 3)
    Image.new("RGB", (1, 4000), BLUE).save(tmp_path / "thin.png")
    assert close_to(read_picture(tmp_path / "thin.png", SIZE), 0, BLUE, 0)


def test_a_large_jpeg_is_downscaled_while_decoding(tmp_path: Path) -> None:
    image = halves(2400, 1600)
    image.save(tmp_path / "a.jpg")
    image.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.jpg") as opened:
        opened.draft(None, (SIZE, SIZE))
        assert opened.size == (300, 200)  # guaranteed by pillow, and bounds the memory
    difference = read_picture(tmp_path / "a.jpg", SIZE).int() - read_picture(tmp_path / "a.png", SIZE).int()
    assert difference.abs().max() <= 8


@given(
    width=st.integers(1, 70),
    height=st.integers(1, 70),
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA"]),
    size=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_picture_becomes_a_square(width: int, height: int, mode: str, size: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.png"
        noise(seed, width, height).convert(mode).save(path)
        once, again = read_picture(path, size), read_picture(path, size)
    assert once.shape == (3, size, size)
    assert torch.equal(once, again)


# ------------------------------------------------------------------------------------------------------------ bad files


def cut(image: Image.Image, ending: str, share: float) -> bytes:
    file = BytesIO()
    image.save(file, ending)
    return file.getvalue()[: int(share * file.tell())]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut.jpg": (lambda: cut(noise(), "JPEG", 0.5), "truncated"),
    "cut.png": (lambda: cut(noise(), "PNG", 0.5), "truncated|damaged"),
    "cut.gif": (lambda: cut(noise(), "GIF", 0.5), "truncated|damaged"),
    "cut.webp": (lambda: cut(noise(), "WEBP", 0.5), "damaged|not a picture"),
    "header.jpg": (lambda: cut(noise(), "JPEG", 0.05), "damaged|not a picture"),
    "text.jpg": (lambda: b"These are my holidays, in words.\n" * 20, "not a picture"),
    "page.png": (lambda: b"<html><body>404</body></html>", "not a picture"),
    "empty.jpg": (lambda: b"", "empty"),
    "zeros.png": (lambda: bytes(1000), "not a picture"),
    "bomb.png": (lambda: bomb(30_000, 30_000), "too large"),
    "smaller-bomb.png": (lambda: bomb(8_000, 8_000), "too large: 8000 x 8000 is more than 50 million pixels"),
    "program.eps": (
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n",
        "not a picture",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_reason_for_a_bad_file(name: str, tmp_path: Path) -> None:
    make, reason = HOSTILE[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(DataError, match=reason) as caught:
        read_picture(tmp_path / name, SIZE)
    assert "\n" not in str(caught.value)
    assert name not in str(caught.value)


def test_bad_files_are_listed_and_good_ones_read(tmp_path: Path) -> None:
    good = make_class(tmp_path / "good", 6)
    make_class(tmp_path / "other")
    for name, (make, _) in HOSTILE.items():
        (good / name).write_bytes(make())
    (good / ".DS_Store").write_bytes(b"hidden")
    (good / "Thumbs.db").write_bytes(b"system")
    found = read_folder(tmp_path, SIZE)
    assert found.class_names == ("good", "other")
    assert torch.bincount(found.images.labels).tolist() == [6, 5]
    assert [file.path.name for file in found.skipped] == sorted(HOSTILE)
    assert all(file.reason for file in found.skipped)


def test_pipes_links_and_devices_do_not_hang(tmp_path: Path) -> None:
    good = make_class(tmp_path / "good")
    make_class(tmp_path / "other")
    os.mkfifo(good / "pipe.jpg")
    (good / "loop.jpg").symlink_to(good / "loop.jpg")
    (good / "gone.jpg").symlink_to(good / "nowhere.jpg")
    (good / "zero.jpg").symlink_to("/dev/zero")
    (good / "linked.png").symlink_to(good / "0.png")
    found = read_folder(tmp_path, SIZE)
    assert [file.path.name for file in found.skipped] == ["gone.jpg", "loop.jpg", "pipe.jpg", "zero.jpg"]
    assert good / "linked.png" in found.paths


def test_links_to_files_outside_are_counted_or_skipped(tmp_path: Path) -> None:
    """Also in a class folder that is a link itself; links within the folder are not outside."""
    folder, elsewhere = tmp_path / "photos", make_class(tmp_path / "elsewhere")
    first, second = make_class(folder / "first"), make_class(folder / "second")
    (first / "out.png").symlink_to(elsewhere / "0.png")
    (first / "in.png").symlink_to(second / "0.png")
    (first / "hidden.png").symlink_to("/etc/passwd")
    (folder / "third").symlink_to(elsewhere)
    found = read_folder(folder, SIZE)
    assert found.class_names == ("first", "second", "third")
    assert found.n_outside == 1 + len(list(elsewhere.iterdir()))
    assert [file.path.name for file in found.skipped] == ["hidden.png"]
    (folder / "third").unlink()
    safe = read_folder(folder, SIZE, links=False)
    assert safe.n_outside == 0
    assert first / "in.png" in safe.paths
    assert [(file.path.name, file.reason) for file in safe.skipped] == [("hidden.png", OUTSIDE), ("out.png", OUTSIDE)]
    (folder / "third").symlink_to(elsewhere)
    with pytest.raises(UserError, match=f"third.*{OUTSIDE}"):
        read_folder(folder, SIZE, links=False)


@pytest.mark.skipif(sys.platform != "linux", reason="limits its own memory, which only Linux enforces")
def test_a_decompression_bomb_needs_no_memory(tmp_path: Path) -> None:
    """With almost no memory left: its header is enough to reject it."""
    (tmp_path / "bomb.png").write_bytes(bomb(30_000, 30_000))
    (tmp_path / "smaller.png").write_bytes(bomb(9_000, 9_000))
    halves().save(tmp_path / "good.png")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 20_000_000, hard))
    try:
        for name in ("bomb.png", "smaller.png"):
            with pytest.raises(DataError, match="more than 50 million pixels"):
                read_picture(tmp_path / name, SIZE)
        assert close_to(read_picture(tmp_path / "good.png", SIZE), 2, RED)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_the_memory_of_the_largest_allowed_picture_is_bounded(tmp_path: Path) -> None:
    side = int(MAX_PIXELS**0.5) // 100 * 100 // 4  # a sixteenth, to keep the test fast; memory is proportional
    image = Image.new("RGBA", (side, side), (255, 0, 0, 128))
    image.save(tmp_path / "a.png")
    del image
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_picture(tmp_path / "a.png", SIZE).shape == (3, SIZE, SIZE)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 16 * side * side


def outcome(path: Path) -> str:
    """The result for a file: a picture or a reason. Any other exception fails the test."""
    try:
        assert read_picture(path, SIZE).shape == (3, SIZE, SIZE)
    except DataError as problem:
        return "reason" if str(problem) else "no reason"
    return "picture"


def test_damage_anywhere_is_never_fatal(tmp_path: Path) -> None:
    """Random changes to the bytes of good files result in a picture or a reason, nothing else."""
    dice = random.Random(0)
    path = tmp_path / "file"
    outcomes = set()
    for ending in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "ICO", "PCX"):
        file = BytesIO()
        noise(width=20, height=24).save(file, ending)
        for _ in range(25):
            content = bytearray(file.getvalue())
            for _ in range(dice.randint(1, 8)):
                content[dice.randrange(min(len(content), dice.choice((40, 10_000))))] = dice.randrange(256)
            path.write_bytes(bytes(content))
            outcomes.add(outcome(path))
    assert outcomes == {"picture", "reason"}


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"BM"]),
)
@settings(max_examples=60, deadline=None)
def test_arbitrary_bytes_give_a_picture_or_a_reason(content: bytes, start: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jpg"
        path.write_bytes(start + content)
        assert outcome(path) in ("picture", "reason")


# -------------------------------------------------------------------------------------------------------------- folders


def test_classes_and_files_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("tulip", "Rose", "aster"):
        make_class(tmp_path / name)
    reports: list[tuple[int, int]] = []
    found = read_folder(tmp_path, SIZE, on_file=lambda done, total: reports.append((done, total)))
    assert found.class_names == ("Rose", "aster", "tulip")
    assert [path.relative_to(tmp_path).as_posix() for path in found.paths] == [
        f"{name}/{number}.png" for name in found.class_names for number in range(5)
    ]
    assert reports == [(done, 15) for done in range(1, 16)]
    for row, path in enumerate(found.paths):
        assert torch.equal(found.images.pixels[row], read_picture(path, SIZE))
        assert found.class_names[int(found.images.labels[row])] == path.parent.name


def test_names_are_normalised_to_nfc(tmp_path: Path) -> None:
    make_class(tmp_path / "cafe\u0301")
    make_class(tmp_path / "zebra")
    assert read_folder(tmp_path, SIZE).class_names == ("caf\u00e9", "zebra")
    make_class(tmp_path / "caf\u00e9")
    with pytest.raises(UserError, match="same name: caf\u00e9"):
        read_folder(tmp_path, SIZE)


def refused(folder: Path, text: str) -> None:
    with pytest.raises(UserError, match=text):
        read_folder(folder, SIZE)


def test_errors_for_folders_without_enough_pictures(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "There is no folder")
    refused(tmp_path, "is empty.*one folder per class")
    halves().save(tmp_path / "loose.png")
    refused(tmp_path / "loose.png", "is a file, not a folder")
    refused(tmp_path, "contains 1 files but no folders")
    make_class(tmp_path / "one")
    refused(tmp_path, "only one class, 'one'")
    (tmp_path / "one").rename(tmp_path / "a\tb")
    refused(tmp_path, r"only one class, 'a\\tb'")
    (tmp_path / "a\tb").rename(tmp_path / "one")
    assert read_folder(tmp_path, SIZE, least_classes=1).class_names == ("one",)
    (tmp_path / "two").mkdir()
    refused(tmp_path, "fewer: 'two' 0")
    make_class(tmp_path / "two", 4)
    (tmp_path / "two" / "bad.jpg").write_bytes(b"")
    refused(tmp_path, r"needs at least 5 pictures.*'two' 4.*bad.jpg \(the file is empty\)")
    assert len(read_folder(tmp_path, SIZE, least_images=4).images) == 9


def test_errors_for_nested_folders(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("ants", "bees"):
            make_class(tmp_path / part / name)
    refused(
        tmp_path, rf"'train'.*contains folders \(ants, bees\) instead of pictures.*use {tmp_path / 'train'} instead"
    )
    make_class(tmp_path / "train" / "ants" / "more")
    halves().save(tmp_path / "train" / "loose.png")
    found = read_folder(tmp_path / "train", SIZE)
    assert len(found.images) == 10
    assert {file.path.name: file.reason for file in found.skipped} == {
        "more": "a folder inside a class folder: its files are not read",
        "loose.png": "outside the class folders",
    }


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    make_class(tmp_path / "few", 5)
    make_class(tmp_path / "many", 20, seed=50)
    return read_folder(tmp_path, SIZE)


def test_a_task_holds_out_a_share_of_each_class(pictures: Pictures) -> None:
    task = pictures.task("holidays", validation=0.2, seed=3)
    assert (task.name, task.class_names) == ("holidays", ("few", "many"))
    assert torch.bincount(task.train.labels).tolist() == [4, 16]
    assert torch.bincount(task.validation.labels).tolist() == [1, 4]
    both = torch.cat([task.train.pixels, task.validation.pixels])
    assert len({picture.numpy().tobytes() for picture in both}) == 25
    again, other = pictures.task("a", seed=3), pictures.task("a", seed=4)
    assert torch.equal(task.train.pixels, again.train.pixels)
    assert not torch.equal(task.train.pixels, other.train.pixels)
    smallest = pictures.task("a", validation=0.01)
    assert torch.bincount(smallest.validation.labels).tolist() == [1, 1]
