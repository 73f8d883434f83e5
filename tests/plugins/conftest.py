"""A registry to try things on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import plugin_files
from clom.plugins import Registry
from plugin_files import SHAPES


@pytest.fixture
def shapes() -> Iterator[Registry[Any]]:
    with plugin_files.clean(SHAPES):
        yield SHAPES
