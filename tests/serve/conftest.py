"""A browser, and photos to show to its page, for the tests of `make test-browser`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clom.data.example_photos import write_example_photos

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PER_CLASS = 12
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_example_photos(folder, per_class=PER_CLASS, per_class_new=3)
    for task, name in (("shapes", "stars"), ("patterns", "checks")):
        shutil.move(folder / task / name, folder / "unused" / name)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if program is None:
        pytest.fail("The browser test needs chromium. On Debian: apt install chromium")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=CAMERA)
        yield found
        found.close()
