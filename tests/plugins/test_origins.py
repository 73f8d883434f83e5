"""What files note about plug-ins, and what is said where these are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom.errors import UserError
from clom.plugins import Registry, origins, require
from plugin_files import SHAPES_FILE, install


def test_files_note_where_things_come_from(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "triangles", "1.2", SHAPES_FILE, {"clom.test_shapes": {"triangle": "triangles:Square"}})
    monkeypatch.syspath_prepend(tmp_path)
    assert origins({shapes: "circle"}) == {}
    assert origins({shapes: "triangle"}) == {"shape": "package triangles 1.2"}
    assert origins({shapes: "triangle"}, versions=False) == {"shape": "package triangles"}
    assert origins({shapes: "what nobody registered"}) == {}


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ("file my_file.py", r"needs the shape 'mine' from my_file.py: repeat the command with --plugin my_file.py, or"),
        ("file my file.py", r"--plugin 'my file.py'"),
        ("module geometry.flat", r"--plugin geometry.flat"),
        (
            "package no-such-package 1.2",
            r"package no-such-package 1.2, which is not installed here: install that one if",
        ),
        ("package numpy 0.1", r"package numpy 0.1, but numpy [0-9.]+ is installed here, which does not provide it"),
        ("module __main__", r"not built in: run the code that registers it first"),
        (
            "file \x1b[2J",
            r"^The file needs the shape 'mine', which is not built in: run the code that registers it first",
        ),
        ("rm -rf /", r"^The file needs the shape 'mine', which is not built in: run the code that registers it first"),
        ("package ", r"run the code that registers it first"),
        (3, r"run the code that registers it first"),
    ],
)
def test_a_missing_plugin_is_named(shapes: Registry[Any], origin: object, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        require({shapes: "mine"}, {"shape": origin}, "The file")
    assert "\n" not in str(caught.value)


def test_what_is_there_is_not_missing(shapes: Registry[Any]) -> None:
    require({shapes: "circle"}, {"shape": "file elsewhere.py"}, "The file")
    nothing: list[object] = [{}, None, [1], "text"]
    for nothing_noted in nothing:
        require({shapes: "unknown"}, nothing_noted, "The file")  # whoever reads the file says what is wrong with it
