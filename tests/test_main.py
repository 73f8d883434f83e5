"""`python -m clom` is the `clom` command."""

from __future__ import annotations

import subprocess
import sys

import clom.__main__


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "clom", "rnu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "rnu" in done.stderr


def test_importing_it_does_not_run_the_command() -> None:
    assert vars(clom.__main__)["main"].__module__ == "clom.cli"
