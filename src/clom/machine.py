"""What this machine is, and the process settings that make it fast. Commands call this; importing clom never does."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clom import __version__
from clom.errors import unknown

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # glibc's malloc.h


def tune_process(threads: int | None = None, deterministic: bool = False) -> None:
    """Keep freed memory for the next step, flush denormals, use every core once; refuse what is not repeatable.

    Activations of one training step are large enough for glibc to map and unmap them each time; the page faults then
    cost more than the arithmetic. Keeping the memory makes a step two to seven times faster. Only the first of glibc's
    arenas keeps it, so threads that compute, as the server's does, must share that one: twice as fast there.
    """
    import torch

    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(_M_ARENA_MAX, 1)
        except (OSError, AttributeError):
            pass  # another C library: nothing to tune, nothing lost
    torch.set_flush_denormal(True)  # soft gates make numbers too small for the fast path
    torch.set_num_threads(threads or cores())
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may choose as it likes
    torch.use_deterministic_algorithms(deterministic)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Physical memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory_bytes() -> int | None:
    """The most memory this process has held so far, where the system tells."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def describe() -> dict[str, Any]:
    """Everything a reader of results needs to know about where they came from."""
    import torch

    packages = {"clom": __version__}
    for name in ("torch", "numpy", "scikit-learn", "safetensors", "pillow"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "unknown"
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": round((memory_bytes() or 0) / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit(),
    }


def commit() -> str | None:
    """The revision of the source this runs from, with a plus if it was changed since; None for an installed copy."""
    source = Path(__file__).resolve().parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=source, capture_output=True, text=True, timeout=10)

    try:
        top = git("rev-parse", "--show-toplevel").stdout.strip()
        if not top or Path(top) / "src" / "clom" != source:
            return None
        changed = git("diff", "--quiet", "HEAD", "--", str(source)).returncode != 0
        return git("rev-parse", "--short", "HEAD").stdout.strip() + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def choose_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """The device called `name`; `auto` takes a GPU if there is one. Of several processes on a machine each gets a GPU
    of its own by its `local_rank`."""
    import torch

    there = _devices()
    if name == "auto":
        name = next(iter(there))
    if name == "cuda" and name in there:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    if name not in there:
        raise unknown("device", name, [*there, "auto"])
    return torch.device(name)


def _devices() -> list[str]:
    """What torch can compute on here, the fastest first."""
    import torch

    gpus = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    found = gpus if torch.cuda.is_available() else []
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
