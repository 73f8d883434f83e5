"""The error for a missing optional package contains the install command."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.extras import EXTRAS, require

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FOR_DEVELOPERS = {"dev", "browser", "docs"}
NOT_FOR_DEVELOPERS = {"track", "wandb", "mlflow"}
"""Trackers: the tests use fakes, and the real ones where they are installed."""


def test_the_extras_are_those_of_pyproject() -> None:
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    packages = {extra: tuple(re.split(r"[<>=~!\[;]", line)[0] for line in lines) for extra, lines in extras.items()}
    assert {extra: names for extra, names in packages.items() if extra not in FOR_DEVELOPERS} == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
def test_installed_packages_are_found_under_their_import_names(extra: str) -> None:
    if extra in NOT_FOR_DEVELOPERS:
        pytest.importorskip(extra if extra != "track" else "tensorboard")
    require(extra, "This")


def test_the_message_names_only_the_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing = {"fastapi", "python_multipart"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find(name))
    with pytest.raises(UserError) as problem:
        require("serve", "clom serve")
    assert str(problem.value) == (
        "clom serve needs fastapi, python-multipart. Install with: pip install fastapi python-multipart"
    )
