"""`import clom` exports every public name and imports each lazily."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clom
from clom import api


def test_every_public_name_is_exported() -> None:
    assert set(api.__all__) | {"ClomClassifier"} == set(clom.__all__)
    assert all(getattr(clom, name) is getattr(api, name) for name in api.__all__)
    assert clom.ClomClassifier.__name__ == "ClomClassifier"
    with pytest.raises(AttributeError, match="no attribute 'make_methd'"):
        clom.make_methd  # noqa: B018


def test_torch_is_imported_lazily() -> None:
    code = "import sys, clom; before = 'torch' in sys.modules; clom.split; print(before, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
