"""Code that somebody named, and what is said where it does not load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom.errors import UserError
from clom.plugins import Registry, load_code, loaded
from plugin_files import SHAPES_FILE, write


def test_a_plugin_may_have_more_files_beside_it(shapes: Registry[Any], tmp_path: Path) -> None:
    write(tmp_path, "neighbour_of_things.py", "SIDE = 2\n")
    path = write(tmp_path, "things.py", SHAPES_FILE + "\nimport neighbour_of_things\n")
    assert shapes.named(f"{path}:Square") == "square"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def broken(:\n", r"SyntaxError: invalid syntax.*line 1"),
        ("x = 1\nraise RuntimeError('no licence')\n", r"RuntimeError: no licence \(line 2\)"),
        ("import there_is_no_such_module\n", r"ModuleNotFoundError: No module named .*\(line 1\)"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(line 2\)"),
        ("\0", r"(SyntaxError|ValueError): source code"),
    ],
)
def test_files_that_do_not_load(shapes: Registry[Any], tmp_path: Path, code: str, said: str) -> None:
    path = write(tmp_path, "things.py", code)
    for _ in range(2):  # a failed attempt leaves nothing behind
        with pytest.raises(UserError, match=rf"things.py cannot be loaded: {said}"):
            shapes.named(f"{path}:Square")
    assert loaded() == []


def test_a_file_loaded_twice_is_executed_once(shapes: Registry[Any], tmp_path: Path) -> None:
    path = write(tmp_path, "things.py", SHAPES_FILE)
    module = load_code(str(path))
    assert load_code(str(path)) is module
    assert module.__name__.startswith("clom_plugin_")
    assert loaded() == [str(path)]
