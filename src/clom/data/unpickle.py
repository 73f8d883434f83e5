"""A safe reader of pickled dictionaries of arrays, which runs no code from the file.

A pickle is a program that can call any function it names. Here it can name only six, each replaced by a stand-in that
records plain data; even numpy's reconstruction code sees only checked bytes. Run time is bounded too: the number of
instructions is limited, and nested structures that would take exponential time to hash or print are rejected.

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

_MAX_INSTRUCTIONS = 2_000_000  # CIFAR-100's training file has about 200,000
_REFUSED = frozenset({"EMPTY_SET", "ADDITEMS", "FROZENSET", "BYTEARRAY8"})
_MAX_TEXT = 300
_NUMBER_CODES = frozenset({"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"})


class _StandIn:
    """Replaces a function named in the file: callable with checked arguments, and immutable."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


class _DType:
    """Replaces a numpy dtype: a plain number type and its byte order."""

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
    """Replaces a numpy array until its shape, type and bytes are known and consistent."""

    __slots__ = ("value",)

    def __init__(self, base: object, *_placeholder: object) -> None:
        if base is not _NDARRAY:
            raise pickle.UnpicklingError("it holds an array of an unknown class")
        self.value: NDArray[np.generic] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, _DType() as kind, bool() | int() as fortran, bytes() as raw):
                flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
                self.value = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise pickle.UnpicklingError("it holds an array in an unknown form")


def _not_callable(*_arguments: object) -> object:
    raise pickle.UnpicklingError("it tries to build an array by hand")


def _encode(text: object, encoding: object) -> bytes:
    """Protocol 2 has no bytes: Python 3 writes them as Latin-1 text and a call that encodes it."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it tries to use a text encoding other than latin1")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """An empty `bytes` in protocol 2."""
    return b""


def _text(value: object) -> str:
    """A name, which is bytes in files of Python 2 and text in those of Python 3; anything else is rejected."""
    if not isinstance(value, str | bytes):
        raise pickle.UnpicklingError(f"it uses a {type(value).__name__} as a name")
    return value.decode("latin-1") if isinstance(value, bytes) else value


_NDARRAY = _StandIn(_not_callable)
_ALLOWED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_DType),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),  # files of numpy 2
    ("_codecs", "encode"): _StandIn(_encode),
    ("__builtin__", "bytes"): _StandIn(_no_bytes),
}


class _Dictionary(dict[str, object]):
    """A dictionary that checks keys before hashing them: only names are allowed. Hashing sixty nested pairs of equal
    pairs would need only a few bytes of a file, but exponential time."""

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(_text(key), value)


def _load_empty_dictionary(unpickler: Any) -> None:
    unpickler.append(_Dictionary())


def _load_dictionary(unpickler: Any) -> None:
    items, names = unpickler.pop_mark(), _Dictionary()
    for key, value in zip(items[::2], items[1::2], strict=True):
        names[key] = value
    unpickler.append(names)


class _Unpickler(pickle._Unpickler):
    """The pure-Python implementation: the one in C does not allow replacing dictionaries."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: _load_empty_dictionary,
        pickle.DICT[0]: _load_dictionary,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it uses '{module}.{name}', which no data file needs") from None


def _check_instructions(content: bytes) -> None:
    """Reject instructions that could take long or need more memory than the file's size justifies."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count > _MAX_INSTRUCTIONS or opcode.name in _REFUSED:
            raise pickle.UnpicklingError("it has instructions that no data file needs")
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError("it needs more memory than its size justifies")


def load_dictionary(path: Path) -> dict[str, object]:
    """The dictionary pickled in `path`, with text keys and numpy arrays; anything else raises a `DataError`."""
    content = read_bytes(path)
    try:
        _check_instructions(content)
        # From memory instead of the file, so that a length in the file cannot allocate more than the file has.
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        why = str(error)[:_MAX_TEXT] or type(error).__name__
        raise DataError(f"{path} is not a usable data file: expected a pickled dictionary, but {why}.") from error
    if not isinstance(found, _Dictionary):
        raise DataError(f"{path}: expected a pickled dictionary, found {type(found).__name__.lstrip('_')}.")
    return {name: value.value if isinstance(value, _Array) else value for name, value in found.items()}
