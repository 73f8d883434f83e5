"""Where bad inputs are put, and how they are packed: archives, and zeros without end that take little room."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from clom.data import catalog

ZEROS = 1_500_000_000  # what a bomb unpacks to


def load(name: str, folder: Path) -> object:
    return catalog.load(name, folder, download=False)


def in_folder(name: str, content: bytes) -> Callable[[Path, Random], None]:
    def make(folder: Path, randomness: Random) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return make


def zip_of(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return target.getvalue()


def deflated_zeros(count: int) -> bytes:
    """So many million zeros as a deflate stream, without ever holding them: one million, written over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    million = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    return million * -(-count // 10**6) + b"\x03\x00"
