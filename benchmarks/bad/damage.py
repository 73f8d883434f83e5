"""Ways of spoiling bytes and values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**9, 10**12, 10**18, 10**30),
    *(0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "x" * 5000, "\0", "../../../etc/passwd", "\ud800", "１２", "a\nb", "%s{0}{self}", "<script>", "[red]"),
    *([], {}, [None], [[[[]]]], {"": {}}, {"a": {"b": {"c": []}}}, [1, "2", 3.0], {"1": 1}, [0] * 1000),
)
"""Values that programs trip over."""

_EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def _place(content: bytes, randomness: Random) -> tuple[int, int]:
    """A window of the content; headers are hit more often than their share of the bytes."""
    reach = len(content) if randomness.random() < 0.5 else min(len(content), 512)
    start = randomness.randrange(reach) if reach else 0
    return start, min(len(content), start + randomness.choice((1, 2, 4, 8, 64, 1024)))


def cut(content: bytes, randomness: Random) -> bytes:
    return content[: randomness.randrange(len(content) + 1)]


def flip(content: bytes, randomness: Random) -> bytes:
    spoiled = bytearray(content)
    for _ in range(randomness.choice((1, 1, 2, 10)) if content else 0):
        spoiled[_place(content, randomness)[0]] ^= 1 << randomness.randrange(8)
    return bytes(spoiled)


def overwrite(content: bytes, randomness: Random) -> bytes:
    start, end = _place(content, randomness)
    filling = randomness.choice((b"\0", b"\xff", randomness.randbytes(1)))
    return content[:start] + filling * (end - start) + content[end:]


def number(content: bytes, randomness: Random) -> bytes:
    """An extreme number where some number may stand."""
    start, _ = _place(content, randomness)
    width, code = randomness.choice(((2, "H"), (4, "I"), (8, "Q")))
    value = randomness.choice(_EXTREMES) & (256**width - 1)
    return content[:start] + struct.pack(randomness.choice("<>") + code, value) + content[start + width :]


def remove(content: bytes, randomness: Random) -> bytes:
    start, end = _place(content, randomness)
    return content[:start] + content[end:]


def repeat(content: bytes, randomness: Random) -> bytes:
    start, end = _place(content, randomness)
    return content[:start] + content[start:end] * randomness.choice((2, 3, 100)) + content[end:]


def insert(content: bytes, randomness: Random) -> bytes:
    start, _ = _place(content, randomness)
    return content[:start] + randomness.randbytes(randomness.choice((1, 4, 100))) + content[start:]


def lengthen(content: bytes, randomness: Random) -> bytes:
    return content + randomness.choice((b"\0", b"\0" * 5000, content, randomness.randbytes(20)))


def noise(content: bytes, randomness: Random) -> bytes:
    return randomness.randbytes(randomness.choice((0, 1, 10, 3000)))


_WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(cut, flip, flip, overwrite, number, number, remove, repeat, insert, lengthen, noise),
)


def spoil(content: bytes, randomness: Random) -> bytes:
    """Bytes with one to three faults."""
    for _ in range(randomness.choice((1, 1, 1, 2, 3))):
        content = randomness.choice(_WAYS)(content, randomness)
    return content


def spoil_file(path: Path, randomness: Random) -> None:
    path.write_bytes(spoil(path.read_bytes(), randomness))


def spoil_value(value: Any, randomness: Random) -> Any:
    """Nested dictionaries and lists with one value, somewhere, replaced, removed or added; `value` is not changed."""
    if isinstance(value, dict) and value and randomness.random() < 0.85:
        key = randomness.choice(list(value))
        action = randomness.random()
        if action < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        if action < 0.2:
            return {**value, randomness.choice(("", "zzz", f"{key}x", "kind")): randomness.choice(NASTY)}
        return {**value, key: spoil_value(value[key], randomness)}
    if isinstance(value, list) and value and randomness.random() < 0.7:
        place = randomness.randrange(len(value))
        if randomness.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return [*value[:place], spoil_value(value[place], randomness), *value[place + 1 :]]
    return randomness.choice(NASTY)
