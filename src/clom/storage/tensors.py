"""Safetensors files with a header and a checksum. Reading one runs no code from it."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as as_safetensors
from torch import Tensor

from clom.errors import UserError
from clom.files import MAX_MODEL_BYTES, read_bytes

CHECKSUM = "sha256"


def to_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """A safetensors file whose header holds a checksum of everything in it. Equal contents give equal bytes."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return _with_sorted_header(as_safetensors(plain, metadata={**header, CHECKSUM: checksum(plain, header)}))


def _with_sorted_header(content: bytes) -> bytes:
    """The same file with its header in a fixed order: safetensors writes the metadata in the random order of a hash
    map."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    places = sorted(header.items(), key=lambda entry: (entry[1]["data_offsets"], entry[0]))
    text = json.dumps({"__metadata__": dict(sorted(metadata.items())), **dict(places)}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    return b"".join([struct.pack("<Q", len(text)), text, memoryview(content)[8 + length :]])


def checksum(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of all names, shapes, types, values and header entries, independent of their order."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the header of a safetensors file; raises if the checksum does not match."""
    tensors, header = _read(path)
    written = header.pop(CHECKSUM, None)
    if written is not None and written != checksum(tensors, header):
        raise UserError(f"{path} is damaged: its checksum does not match.")
    return tensors, header


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the file once, as a whole: a program that truncates a memory-mapped file kills whoever reads it."""
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    content = read_bytes(path, MAX_MODEL_BYTES)
    try:
        tensors = dict(sorted(from_safetensors(content).items()))  # otherwise in the order of a hash map
        (length,) = struct.unpack_from("<Q", content)
        return tensors, dict(json.loads(content[8 : 8 + length]).get("__metadata__") or {})
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as problem:
        raise UserError(f"{path} cannot be read as a model file: {str(problem)[:300]}.") from None
