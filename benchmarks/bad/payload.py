"""Pickles that would run code: reading one must leave no trace of it."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

MARK = "executed"
"""The file or folder that appears beside an input whose code was run."""


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def hostile(folder: Path) -> dict[str, Any]:
    """Objects whose unpickling would make the mark, each by another way."""
    mark = str(folder / MARK)
    program = f"import os; os.mkdir({mark!r})"
    return {
        "os.mkdir": Call(os.mkdir, mark),
        "os.system": Call(os.system, f"mkdir '{mark}'"),
        "subprocess": Call(subprocess.check_call, ["mkdir", mark]),
        "eval": Call(eval, f"__import__('os').mkdir({mark!r})"),
        "exec": Call(exec, program),
        "open": Call(open, mark, "w"),
        "import": Call(__import__, "antigravity"),
        "getattr": Call(getattr, os, "mkdir"),
    }


def hostile_pickles(folder: Path) -> dict[str, bytes]:
    """The same as bytes, alone and inside of what a data file holds, and programs that no pickler writes."""
    mark = str(folder / MARK)
    found = {}
    for name, payload in hostile(folder).items():
        try:
            found[name] = pickle.dumps({"data": payload, "labels": [0]}, 2)
        except TypeError:  # modules cannot be pickled; the getattr way is written by hand below
            continue
    found["old opcodes"] = f"cos\nmkdir\n(S'{mark}'\ntR.".encode()
    found["instance"] = f"(S'{mark}'\nios\nmkdir\n.".encode()
    found["object"] = f"(cos\nmkdir\nS'{mark}'\no.".encode()
    found["after the end"] = pickle.dumps({}) + f"cos\nmkdir\n(S'{mark}'\ntR.".encode()
    found["numpy's loader"] = b"cnumpy\nload\n(S'x'\ntR."
    found["numpy's run"] = f"cnumpy.testing._private.utils\nrunstring\n(S'import os;os.mkdir({mark!r})'\n}}tR.".encode()
    found["dotted name"] = b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__class__\x93."
    found["codecs"] = f"c_codecs\ndecode\n(S'{mark}'\nS'rot13'\ntR.".encode()
    found["new object"] = b"\x80\x02cnumpy\nndarray\n(tR\x81."
    found["build"] = b"\x80\x02cnumpy\ndtype\n}X\x08\x00\x00\x00__call__K\x01sb."
    return found
