"""Headers of safetensors files that lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any


def relabelled(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The same numbers under another safetensors header."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    changed = change(header)
    text = json.dumps(header if changed is None else changed).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def lying_headers(content: bytes) -> dict[str, bytes]:
    """A sound file under headers that lie about lengths, types, shapes and places."""
    (length,) = struct.unpack("<Q", content[:8])
    first = next(name for name in json.loads(content[8 : 8 + length]) if name != "__metadata__")
    found = {
        f"header length {value}": struct.pack("<Q", value) + content[8:]
        for value in (0, 1, 2, length - 1, length + 1, 10**8, 10**8 + 1, 2**40, 2**63, 2**64 - 1)
    }

    def entry(**values: Any) -> bytes:
        return relabelled(content, lambda header: header[first].update(values))

    for kind in ("I32", "F64", "F16", "BF16", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X9", "", 3):
        found[f"type {kind}"] = entry(dtype=kind)
    for shape in ([], [0], [-1], [2**62, 4], [2**32, 2**32], [10**30], ["a"], None, [1.5], [1] * 200):
        found[f"shape {str(shape)[:30]}"] = entry(shape=shape)
    for offsets in ([0, 0], [4, 0], [0, 10**12], [-4, 0], [2**64, 2**64 + 4], [0], [0, 4, 8], "x", None):
        found[f"offsets {offsets}"] = entry(data_offsets=offsets)
    found["a second tensor at the same place"] = relabelled(content, lambda h: h.update(again=h[first]))
    found["metadata numbers"] = relabelled(content, lambda h: h.update(__metadata__={"format": 1}))
    found["metadata a list"] = relabelled(content, lambda h: h.update(__metadata__=[1]))
    found["metadata nested"] = relabelled(content, lambda h: h["__metadata__"].update(x={"y": 1}))
    found["header a list"] = relabelled(content, lambda h: [h])
    deep = b"[" * 50_000 + b"]" * 50_000
    found["header nested"] = struct.pack("<Q", len(deep)) + deep
    found["header of spaces"] = struct.pack("<Q", 10**7) + b" " * 10**7
    found["header not text"] = struct.pack("<Q", 20) + b"\xff" * 40
    return found
