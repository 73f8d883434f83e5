"""Reads pickled dictionaries of arrays without running anything that the file brings along.

A pickle is a little program that may call any function it can name. Here it can name six things, and each is a stand-in
of ours that only records plain data; not even numpy's own reconstruction code sees bytes that were not checked first.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clom.errors import DataError

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
    """Names are bytes in files of Python 2 and text in those of Python 3."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


_NDARRAY = _StandIn(_not_callable)
_ALLOWED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_Kind),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 2
    ("_codecs", "encode"): _StandIn(_encode),
    ("__builtin__", "bytes"): _StandIn(_no_bytes),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which no data file needs") from None


def _check_memo(content: bytes) -> None:
    """Refuses a huge index into the unpickler's table of objects, which would fill the memory with an empty table."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError("it asks for more memory than its size explains")


def load_dictionary(path: Path) -> dict[str, object]:
    """The dictionary pickled in `path`, with text keys and numpy arrays; anything else in the file is an error."""
    try:
        content = path.read_bytes()
        _check_memo(content)
        # From memory, not from the file: a length in the file can then never ask for more than the file has.
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path} is not a usable data file: expected a pickled dictionary, but {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a pickled dictionary, found {type(found).__name__.lstrip('_')}.")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in found.items()}
