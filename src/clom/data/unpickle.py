"""Reads pickled dictionaries of arrays without running anything that the file brings along.

A pickle is a little program that may call any function it can name. Here it can name six things, and each is a stand-in
of ours that only records plain data; not even numpy's own reconstruction code sees bytes that were not checked first.
It may not run for ever either: its length is limited, and nothing is hashed or written out that may hold itself a
million times over.

Tested by tests/data/test_formats.py.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clom.errors import DataError
from clom.files import read_bytes

_MAX_INSTRUCTIONS = 2_000_000  # CIFAR-100's training file has some 200,000
_REFUSED = frozenset({"EMPTY_SET", "ADDITEMS", "FROZENSET", "BYTEARRAY8"})
_MAX_TEXT = 300
_NUMBER_CODES = frozenset({"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"})


class _StandIn:
    """What a name in the file turns into: callable with checked arguments, and closed against changes by the file."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


class _Kind:
    """Stands for a numpy dtype: a plain number type and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_flags: object) -> None:
        self.code = _text(code).lstrip("|<>=")
        self.order = "="
        if self.code not in _NUMBER_CODES:
            raise pickle.UnpicklingError(f"it holds an array of type {self.code!r}, not of numbers")

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or _text(state[1]) not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError("it holds an array type with unknown byte order")
        self.order = _text(state[1])


class _Array:
    """Stands for a numpy array until its shape, type and bytes have arrived and agree with one another."""

    __slots__ = ("value",)

    def __init__(self, base: object, *_placeholder: object) -> None:
        if base is not _NDARRAY:
            raise pickle.UnpicklingError("it holds an array of an unknown class")
        self.value: NDArray[np.generic] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, _Kind() as kind, bool() | int() as fortran, bytes() as raw):
                flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
                self.value = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise pickle.UnpicklingError("it holds an array in an unknown form")


def _not_callable(*_arguments: object) -> object:
    raise pickle.UnpicklingError("it tries to build an array by hand")


def _encode(text: object, encoding: object) -> bytes:
    """Protocol 2 has no bytes: Python 3 writes them as Latin-1 text and a call that turns them back."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it tries to use a text encoding other than latin1")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """How protocol 2 writes an empty `bytes`."""
    return b""


def _text(value: object) -> str:
    """Names are bytes in files of Python 2 and text in those of Python 3. Nothing else is one."""
    if not isinstance(value, str | bytes):
        raise pickle.UnpicklingError(f"it uses a {type(value).__name__} as a name")
    return value.decode("latin-1") if isinstance(value, bytes) else value


_NDARRAY = _StandIn(_not_callable)
_ALLOWED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_Kind),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 2
    ("_codecs", "encode"): _StandIn(_encode),
    ("__builtin__", "bytes"): _StandIn(_no_bytes),
}


class _Names(dict[str, object]):
    """A dictionary that looks at a key before it is hashed: names only. To hash a pair of equal pairs of equal pairs,
    sixty deep, takes a few bytes of a file and more than a lifetime."""

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(_text(key), value)


def _load_empty_dictionary(unpickler: Any) -> None:
    unpickler.append(_Names())


def _load_dictionary(unpickler: Any) -> None:
    items, names = unpickler.pop_mark(), _Names()
    for key, value in zip(items[::2], items[1::2], strict=True):
        names[key] = value
    unpickler.append(names)


class _Unpickler(pickle._Unpickler):
    """Python's own implementation, not the one in C: that one cannot be given other dictionaries."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: _load_empty_dictionary,
        pickle.DICT[0]: _load_dictionary,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which no data file needs") from None


def _check_instructions(content: bytes) -> None:
    """Refuses what could run for long or ask for memory that the file's size does not explain; no data file does."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count > _MAX_INSTRUCTIONS or opcode.name in _REFUSED:
            raise pickle.UnpicklingError("it has instructions that no data file needs")
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError("it asks for more memory than its size explains")


def load_dictionary(path: Path) -> dict[str, object]:
    """The dictionary pickled in `path`, with text keys and numpy arrays; anything else in the file is an error."""
    content = read_bytes(path)
    try:
        _check_instructions(content)
        # From memory, not from the file: a length in the file can then never ask for more than the file has.
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        why = str(error)[:_MAX_TEXT] or type(error).__name__
        raise DataError(f"{path} is not a usable data file: expected a pickled dictionary, but {why}.") from error
    if not isinstance(found, _Names):
        raise DataError(f"{path}: expected a pickled dictionary, found {type(found).__name__.lstrip('_')}.")
    return {name: value.value if isinstance(value, _Array) else value for name, value in found.items()}
