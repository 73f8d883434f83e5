"""What not every system has is used with a fallback: found in the source, and tried by pretending to be another system.

docs/platforms.md lists what could not be tried here.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import fcntl
import importlib.util
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from clom import machine
from clom.errors import UserError
from clom.files import write_atomically
from clom.serve.images import decoder
from clom.serve.lessons import stored_lesson, worker

SOURCE = Path(__file__).parents[1] / "src" / "clom"

# Modules and attributes that Windows or macOS lack, with the files that use them and have a fallback.
RARE = {
    "fcntl": {"locks.py"},
    "msvcrt": {"locks.py"},
    "resource": {"machine.py", "serve/images/decoder.py"},
    "ctypes": {"machine.py"},
    "pwd": set(),
    "grp": set(),
    "termios": set(),
    "os.chown": set(),
    "os.fchmod": {"files.py"},
    "os.fchown": {"files.py"},
    "os.fork": set(),
    "os.forkpty": set(),
    "os.getuid": set(),
    "os.killpg": set(),
    "os.nice": {"serve/lessons/worker.py"},
    "os.sched_getaffinity": {"machine.py"},
    "os.setsid": set(),
    "os.sysconf": {"machine.py"},
    "os.mkfifo": set(),
    "os.O_NOFOLLOW": set(),
    "os.O_NONBLOCK": set(),
    "os.link": {"photos/previous.py", "serve/lessons/stored_lesson.py"},
    "os.symlink": set(),
    "signal.alarm": {"serve/images/decoder.py"},
    "signal.pause": set(),
    "signal.SIGKILL": set(),
    "signal.SIGHUP": set(),
    "signal.SIGUSR1": set(),
    "loop.add_signal_handler": set(),
}
FILES = {
    "/proc/": {"machine.py", "serve/images/decoder.py"},
    "/dev/": set[str](),
    "/sys/": set[str](),
    "/tmp": set[str](),
}


@pytest.mark.parametrize("name", RARE)
def test_what_some_systems_lack_is_used_where_there_is_a_fallback(name: str) -> None:
    used = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if name in _names(path)}
    assert used == RARE[name], "give it a fallback, a test here, and a line in docs/platforms.md"


@pytest.mark.parametrize("start", FILES)
def test_paths_that_only_some_systems_have(start: str) -> None:
    used = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if _has_text(path, start)}
    assert used == FILES[start]


def _names(path: Path) -> set[str]:
    """Imported modules, and attributes of names: `os.nice`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


def _has_text(path: Path, start: str) -> bool:
    nodes = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant))
    return any(isinstance(node.value, str) and node.value.startswith(start) for node in nodes)


# --- the machine -----------------------------------------------------------------------------------------------------


def refuse(*arguments: object, **options: object) -> Any:
    raise AssertionError(f"not on this system: {arguments}")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_allocator_is_glibc_s_only_on_linux(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    before = torch.get_num_threads()
    machine.tune_process(threads=1)
    torch.set_num_threads(before)


def test_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_memory_is_unknown_without_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert machine.memory_bytes() is None
    assert machine.describe()["memory_gb"] == 0


def test_peak_memory_has_the_system_s_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kilobytes <= (machine.peak_memory_bytes() or 0) < 2 * kilobytes
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine.peak_memory_bytes() is None


def test_the_processor_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "open", _without_proc)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert machine.describe()["processor"] == "arm"


def _without_proc(path: str, *arguments: Any, **options: Any) -> Any:
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(path)
    return open(path, *arguments, **options)


# --- locks and files -------------------------------------------------------------------------------------------------


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as Windows imports it, with Linux's byte locks, which belong to an open file as those of Windows."""
    fake = ModuleType("msvcrt")

    def locking(descriptor: int, mode: int, count: int) -> None:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert place > 100, "on Windows nobody else could read the process id, which is at the start"
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, count, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)

    fake.locking, fake.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(sys, "platform", "win32")
    spec = importlib.util.spec_from_file_location("locks_of_windows", SOURCE / "locks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_locks_of_windows(windows_locks: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "my.model"
    for _ in range(2):
        with windows_locks.Lock(path) as lock:
            message = f"is being taught by process {os.getpid()}"
            with pytest.raises(UserError, match=message), windows_locks.Lock(path):
                pytest.fail("two at once")
        assert lock.file.exists(), "Windows cannot remove an open file"


def test_permissions_are_kept_only_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my.model"
    path.write_bytes(b"old")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(os, "fchown", refuse)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


# --- the server ------------------------------------------------------------------------------------------------------


def test_the_decoder_s_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.update({kind: limit}))
    monkeypatch.setattr(builtins, "open", _without_proc)
    decoder.limit(1000)  # macOS
    assert limits == {resource.RLIMIT_FSIZE: (0, 0), resource.RLIMIT_CORE: (0, 0)}
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(signal, "alarm", refuse)
    decoder.limit(1000)
    decoder.alarm(1)


def test_a_model_is_copied_where_it_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*paths: object) -> None:
        raise OSError("not supported")

    (tmp_path / "a").write_bytes(b"model")
    monkeypatch.setattr(os, "link", no_links)
    stored_lesson._link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"model"


def test_lessons_keep_their_priority_where_it_cannot_be_lowered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "nice")
    monkeypatch.setattr(worker, "_end_with_input", lambda: None)  # the input of the tests has ended
    monkeypatch.setattr(machine, "tune_process", lambda threads: None)
    monkeypatch.setattr(sys, "argv", ["worker", "inspect", str(tmp_path / "absent"), "1", "10", "cpu"])
    worker.main()
    assert "There is no file" in capsys.readouterr().out


# --- the terminal ----------------------------------------------------------------------------------------------------


def test_characters_that_the_terminal_lacks_are_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clom", "table", "main", "--format", "markdown"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert b"mean ? standard deviation" in done.stdout
