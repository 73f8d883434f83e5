"""Bad pictures, alone and in a folder of classes."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from PIL import Image

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil
from benchmarks.bad.places import deflated_zeros, in_folder
from clom.data.folders import read_folder, read_picture

_KINDS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "TIFF",
    "WEBP",
    "ICO",
    "PPM",
    "TGA",
    "PCX",
    "SGI",
    "DDS",
    "JPEG2000",
    "ICNS",
    "IM",
)


@cache
def samples() -> dict[str, bytes]:
    """One small picture of every kind that this machine can write."""
    found = {}
    image = Image.frombytes("RGB", (32, 24), bytes(range(256)) * 9)
    for kind in _KINDS:
        target = io.BytesIO()
        try:
            image.save(target, kind)
        except (OSError, KeyError, ValueError):
            continue
        found[kind] = target.getvalue()
    return found


def png(width: int, height: int, body: bytes, extra: bytes = b"", colour: int = 2, depth: int = 8) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _zeros(count: int) -> bytes:
    """So many zeros as a zlib stream, whose checksum is easily told."""
    whole = -(-count // 10**6) * 10**6
    return b"\x78\x9c" + deflated_zeros(whole) + struct.pack(">I", (whole % 65521 << 16) + 1)


def _special() -> Mapping[str, Make]:
    contents = {
        "empty": b"",
        "text": b"These are my holidays, in words.\n",
        "no width": png(0, 5, b""),
        "2^31 wide": png(2**31 - 1, 2**31 - 1, zlib.compress(b"x")),
        "50 million pixels": png(7071, 7071, _zeros(151_000_000)),
        "50 million pixels of 16 bits": png(7071, 7071, _zeros(101_000_000), colour=0, depth=16),
        "51 million pixels": png(7142, 7142, _zeros(153_000_000)),
        "one row": png(40_000_000, 1, _zeros(120_000_000)),
        "pixels behind the end": png(4, 4, _zeros(500_000_000)),
        "colour profile bomb": png(4, 4, zlib.compress(bytes(52)), chunk(b"iCCP", b"x\0\0" + _zeros(500_000_000))),
        "text bomb": png(4, 4, zlib.compress(bytes(52)), chunk(b"zTXt", b"x\0\0" + _zeros(500_000_000))),
        "palette missing": png(4, 4, zlib.compress(bytes(20)), colour=3),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n",
        "drawing": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "gif without end": b"GIF89a\x04\x00\x04\x00\x80\x00\x00\0\0\0\xff\xff\xff,\0\0\0\0\x04\0\x04\0\0\x02",
        "gif of 65535": b"GIF89a"
        + b"\xff" * 4
        + b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0"
        + b"\xff" * 4
        + b"\0\x02\x02L\x01\0;",
        "bitmap upside down": b"BM"
        + struct.pack("<IIIIiiHHIIiiII", 99, 0, 54, 40, 9, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0),
        "tiff in itself": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "tiff of many tags": b"II*\0\x08\0\0\0\xff\xff" + b"\x00\x01\x04\0\xff\xff\xff\xff\0\0\0\0" * 500,
        "ppm of words": b"P6\n" + b"9" * 5000 + b" 1\n255\n",
        "ppm comment": b"P6\n#" + b"x" * 100_000,
        "fits": b"SIMPLE  =                    T" + b" " * 50 + b"NAXIS   =           9999999999" + b" " * 5000,
    }
    found = {name: in_folder("picture", content) for name, content in contents.items()}
    for kind, content in samples().items():
        for share in (0.1, 0.5, 0.9):
            found[f"{kind} cut to {share:.0%}"] = in_folder("picture", content[: int(share * len(content))])

    def pipe(folder: Path, randomness: Random) -> None:
        os.mkfifo(folder / "picture")

    def device(folder: Path, randomness: Random) -> None:
        (folder / "picture").symlink_to("/dev/zero")

    def loop(folder: Path, randomness: Random) -> None:
        (folder / "picture").symlink_to(folder / "picture")

    return {"a pipe": pipe, "endless zeros": device, "a link to itself": loop, **found}


def _chance(folder: Path, randomness: Random) -> None:
    content = samples()[randomness.choice(sorted(samples()))]
    (folder / "picture").write_bytes(spoil(content, randomness))


# --- folders ---------------------------------------------------------------------------------------------------------


def _good_folder(folder: Path) -> Path:
    base = folder / "photos"
    for name in ("cats", "dogs"):
        (base / name).mkdir(parents=True)
        for number, kind in enumerate(("JPEG", "PNG", "GIF")):
            (base / name / f"{number}.jpg").write_bytes(samples()[kind])
    return base


def _folder_special() -> Mapping[str, Make]:
    def nothing(folder: Path, randomness: Random) -> None:
        (folder / "photos").mkdir()

    def a_file(folder: Path, randomness: Random) -> None:
        (folder / "photos").write_bytes(b"x")

    def one_class(folder: Path, randomness: Random) -> None:
        (folder / "photos" / "cats").mkdir(parents=True)

    def odd_names(folder: Path, randomness: Random) -> None:
        base = _good_folder(folder)
        for name in (b"\xff\xfe", "e\u0301".encode(), "\u202egnp".encode(), b"new\nline", b"[red]", b"-rf"):
            os.mkdir(os.fsencode(base) + b"/" + name)

    def same_names(folder: Path, randomness: Random) -> None:
        base = _good_folder(folder)
        for name in ("e\u0301", "\u00e9"):
            (base / name).mkdir()

    def loops(folder: Path, randomness: Random) -> None:
        base = _good_folder(folder)
        (base / "loop").symlink_to(base)
        (base / "cats" / "self").symlink_to(base / "cats" / "self")

    def pipes(folder: Path, randomness: Random) -> None:
        os.mkfifo(_good_folder(folder) / "cats" / "pipe.jpg")

    def bombs(folder: Path, randomness: Random) -> None:
        base = _good_folder(folder)
        for number in range(5):
            (base / "cats" / f"bomb{number}.png").write_bytes(png(30_000, 30_000, _zeros(10**6)))

    def nested(folder: Path, randomness: Random) -> None:
        (_good_folder(folder) / "birds" / "inner").mkdir(parents=True)

    def all_broken(folder: Path, randomness: Random) -> None:
        for path in _good_folder(folder).rglob("*.jpg"):
            path.write_bytes(b"broken")

    makers = (nothing, a_file, one_class, odd_names, same_names, loops, pipes, bombs, nested, all_broken)
    return {maker.__name__: maker for maker in makers}


def _folder_chance(folder: Path, randomness: Random) -> None:
    for path in _good_folder(folder).rglob("*.jpg"):
        if randomness.random() < 0.4:
            path.write_bytes(spoil(path.read_bytes(), randomness))


def readers() -> list[Reader]:
    return [
        Reader("pictures", _special, _chance, lambda folder: read_picture(folder / "picture", 32)),
        Reader(
            "folders of pictures",
            _folder_special,
            _folder_chance,
            lambda folder: read_folder(folder / "photos", 32, least_images=2),
        ),
    ]
