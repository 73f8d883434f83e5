"""`import clom` offers every public name and loads none before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clom
from clom import api


def test_every_name_is_there() -> None:
    assert set(api.__all__) | {"ClomClassifier"} == set(clom.__all__)
    assert all(getattr(clom, name) is getattr(api, name) for name in api.__all__)
    assert clom.ClomClassifier.__name__ == "ClomClassifier"
    with pytest.raises(AttributeError, match="no attribute 'make_methd'"):
        clom.make_methd  # noqa: B018


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, clom; before = 'torch' in sys.modules; clom.split; print(before, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
