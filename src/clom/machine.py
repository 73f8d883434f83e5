"""Hardware, devices, and process settings for speed. Only commands change settings; importing clom never does."""

from __future__ import annotations

import contextlib
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
    """Configure this process: reuse freed memory, flush denormals, set the number of threads (by default one per
    core), and optionally allow deterministic algorithms only.

    The activations of a training step are so large that glibc maps and unmaps them in every step, and the page faults
    cost more than the arithmetic. Keeping the memory makes a step two to seven times as fast. Only glibc's main arena
    keeps it, so all threads must use that one; this doubles the speed of the server, which computes in a thread.
    """
    import torch

    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(_M_ARENA_MAX, 1)
        except (OSError, AttributeError):
            pass  # another C library
    torch.set_flush_denormal(True)  # soft gates produce denormals, which are slow
    torch.set_num_threads(threads or cores())
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise cuBLAS is not deterministic
    torch.use_deterministic_algorithms(deterministic)


def release_memory() -> None:
    """Give memory that was freed back to the system, which `tune_process` keeps for the next step."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def allow_open_files(count: int) -> None:
    """Raise this process's own limit, as far as the system permits."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cores() -> int:
    """The number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Physical memory; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory_bytes() -> int | None:
    """Peak memory usage of this process so far; None if unknown."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def describe() -> dict[str, Any]:
    """Hardware and software versions, for the record of a run."""
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
    """The git commit of the source, with a plus if there are uncommitted changes; None for an installed package."""
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
    """The device with this name; `auto` is a GPU if there is one. With several processes on one machine, `cuda` is the
    GPU number `local_rank`."""
    import torch

    available = _devices()
    if name == "auto":
        name = available[0]
    if name == "cuda" and name in available:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    if name not in available:
        raise unknown("device", name, [*available, "auto"])
    return torch.device(name)


def _devices() -> list[str]:
    """The names of all available devices, the fastest first."""
    import torch

    gpus = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    found = gpus if torch.cuda.is_available() else []
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def device_memory(device: torch.device) -> int | None:
    """The memory of a GPU in bytes; None for a CPU, where images are stored anyway."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(torch.mps.recommended_max_memory()) if device.type == "mps" else None
