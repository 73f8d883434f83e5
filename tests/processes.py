"""Starting several processes that know of each other, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def start(n_ranks: int, *command: str) -> list[subprocess.Popen[str]]:
    """The same Python command in so many processes, as torchrun would start them but without its seconds of thought."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(n_ranks)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n_ranks)
    ]


def torchrun(n_ranks: int, *command: str) -> subprocess.Popen[str]:
    """`torchrun --nproc-per-node N -m clom ...`."""
    return subprocess.Popen(
        [
            sys.executable,
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks), "-m", "clom", *command),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(**more: str) -> dict[str, str]:
    """This process's own, one thread, and the modules that it finds."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def ended(processes: list[subprocess.Popen[str]], seconds: float = 280) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        texts = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]
