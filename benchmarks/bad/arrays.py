"""Bad npz files."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil
from benchmarks.bad.places import ZEROS, deflated_zeros, in_folder, load, zip_of

_NPZ = "SVHN/test_2000.npz"


def npz(**arrays: Any) -> bytes:
    target = io.BytesIO()
    np.savez_compressed(target, **arrays)
    return target.getvalue()


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode("latin-1") + body


_HEADERS = {
    "of 10^13 bytes": "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000, 32, 32, 1)}\n",
    "of 2^80 bytes": "{'descr': '|u1', 'fortran_order': False, 'shape': (1208925819614629174706176,)}\n",
    "of 3 GB": "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000, 32, 32, 1)}\n",
    "negative": "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 32, 32, 1)}\n",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n",
    "nested": "(" * 4000 + ")" * 4000,
    "open bracket": "{'descr': '|u1', (\n",
    "code": "__import__('os').mkdir('executed')\n",
    "tabs": "\t  {'descr': \n\t'|u1'\n  }",
    "unknown type": "{'descr': '|z9', 'fortran_order': False, 'shape': (1,)}\n",
    "type of records": "{'descr': [('a', '<i4', (1000000000,))], 'fortran_order': False, 'shape': (1,)}\n",
    "empty": "",
}


def _npz_special() -> Mapping[str, Make]:
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    good_labels = io.BytesIO()
    np.save(good_labels, labels)
    contents = {
        "empty": b"",
        "no labels": npz(images=images),
        "images as floats": npz(images=images.astype(float), labels=labels),
        "two channels": npz(images=images[..., :2], labels=labels),
        "three dimensions": npz(images=images[0], labels=labels),
        "scalar": npz(images=np.uint8(3), labels=labels),
        "labels as floats": npz(images=images, labels=labels.astype(float)),
        "labels beyond": npz(images=images, labels=labels + 8),
        "labels of 64 bits": npz(images=images, labels=np.full(4, 2**63, np.uint64)),
        "objects": npz(images=np.array([{}], dtype=object), labels=labels),
        "no pixels": npz(images=np.zeros((0, 0, 0, 3), np.uint8), labels=np.zeros(0, np.int64)),
        "a pickle": pickle.dumps({"images": 1}),
        "one array": good_labels.getvalue(),
        "a zip of texts": zip_of({"images.npy": b"text", "labels.npy": b""}),
        "a zip of zip": zip_of({"images": b"", "labels": b""}),
    }
    for name, header in _HEADERS.items():
        for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"):
            member = npy(header, bytes(100), version)
            contents[f"header {name}, version {version[0]}"] = zip_of(
                {"images.npy": member, "labels.npy": good_labels.getvalue()}
            )
    found = {name: in_folder(_NPZ, content) for name, content in contents.items()}

    return {"bomb": in_folder(_NPZ, _npz_bomb(good_labels.getvalue())), **found}


def _npz_bomb(labels: bytes) -> bytes:
    header = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({ZEROS // 3072}, 32, 32, 3)}}\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("images.npy", start + deflated_zeros(ZEROS))
        packed.filelist[-1].compress_type = zipfile.ZIP_DEFLATED  # what is stored is deflated already
        packed.filelist[-1].file_size = len(header) + ZEROS
        packed.writestr("labels.npy", labels)
    return target.getvalue()


def _npz_chance(folder: Path, randomness: Random) -> None:
    content = npz(images=np.zeros((4, 32, 32, 3), np.uint8), labels=np.arange(4))
    in_folder(_NPZ, spoil(content, randomness))(folder, randomness)


def readers() -> list[Reader]:
    return [Reader("npz (SVHN)", _npz_special, _npz_chance, partial(load, "svhn"))]
