"""File locks: one holder at a time, released when the holder ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.locks import Lock

HOLD = """
import sys, time
from pathlib import Path
from clom.locks import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_error_of_a_second_holder_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "my.clom"
    message = f"my.clom is being taught by process {os.getpid()}. Wait"
    with Lock(path), pytest.raises(UserError, match=message), Lock(path):
        pytest.fail("two at once")


def test_it_is_released_and_leaves_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        with Lock(tmp_path / "new" / "run", doing="run") as lock:
            assert lock.file.read_text() == str(os.getpid())
    assert list((tmp_path / "new").iterdir()) == []


def test_an_exception_releases_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), Lock(tmp_path / "a"):
        raise ValueError("inside")
    with Lock(tmp_path / "a"):
        pass


def test_locks_of_different_paths_are_independent(tmp_path: Path) -> None:
    with Lock(tmp_path / "a"), Lock(tmp_path / "b"):
        pass


def test_killing_the_holder_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "my.clom"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"by process {other.pid}\\."), Lock(path):
        pytest.fail("two at once")
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / ".my.clom.lock").exists()
    with Lock(path):
        pass


def test_a_symbolic_link_shares_the_lock_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "model").touch()
    (tmp_path / "link").symlink_to("model")
    with Lock(tmp_path / "model"), pytest.raises(UserError, match="link is being taught"), Lock(tmp_path / "link"):
        pytest.fail("two at once")


def test_a_link_in_the_place_of_the_lock_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".model.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"\.model\.lock"), Lock(tmp_path / "model"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_others_write_into_the_lock_is_not_repeated(tmp_path: Path) -> None:
    with Lock(tmp_path / "model"):
        (tmp_path / ".model.lock").write_text("12\x1b[2J" + "x" * 10_000)
        with pytest.raises(UserError, match="by another process"), Lock(tmp_path / "model"):
            pass
