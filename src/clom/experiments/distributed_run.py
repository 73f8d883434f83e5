"""One run distributed over several processes.

Rank 0 works in the run's folder, all other ranks in temporary copies of it. So all resume from the same state, whether
or not the machines share a disk, and do not overwrite each other's files.
"""

from __future__ import annotations

import io
import signal
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed as dist

from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.config import RunConfig
from clom.experiments.provenance import data_digest
from clom.launch import Launch
from clom.learning.distributed import require_same, session
from clom.methods.registry import BUILT_IN, method_info
from clom.nets import data_parallel

_NOT_NEEDED = ("features.safetensors", "scores.json", "report.html", "figure.svg", "figure.png", "progress.jsonl")
_NOT_NEEDED_FOLDERS = {"tensorboard", "wandb"}


@contextmanager
def working_folder(launch: Launch, config: RunConfig, folder: Path) -> Iterator[Path]:
    """Join the other processes of `launch` and yield the folder to work in; for a single process, `folder` itself."""
    if launch.size == 1:
        yield folder
        return
    _check_method(config.method)
    with session(launch):
        require_same("settings", config.model_dump_json().encode())
        if launch.is_main:
            broadcast(pack(folder))
            yield folder
        else:
            _follow()
            with tempfile.TemporaryDirectory(prefix="clom-") as copy:
                unpack(broadcast(b""), Path(copy))
                yield Path(copy)


def _check_method(name: str) -> None:
    if not method_info(name).divisible:
        able = ", ".join(sorted(other for other in BUILT_IN if BUILT_IN[other].divisible))
        raise UserError(
            f"'{name}' cannot be distributed, because it does not train the experiment's network. Start it without "
            f"torchrun. Methods that can be distributed: {able}."
        )


def _follow() -> None:
    """Leave warnings and signals to rank 0; when it ends, the next collective fails and ends this process."""
    warnings.simplefilter("ignore")
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def load_stream(launch: Launch, config: RunConfig, data: Path | None) -> Stream:
    """The run's images, which must be the same on all ranks; one process per machine downloads them."""
    if launch.size == 1:
        return config.data.stream(data, config.seed)
    if launch.local_rank == 0:
        stream = config.data.stream(data, config.seed)
    data_parallel.collective(dist.barrier)
    if launch.local_rank != 0:
        stream = config.data.stream(data, config.seed)
    require_same("images", data_digest(stream).encode())
    return stream


def broadcast(content: bytes) -> bytes:
    """The content of rank 0, on all ranks."""
    size = torch.tensor([len(content)])
    data_parallel.collective(dist.broadcast, size, 0)
    data = torch.zeros(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0 and content:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    data_parallel.collective(dist.broadcast, data, 0)
    return data.numpy().tobytes()


def pack(folder: Path) -> bytes:
    """The files that resuming a run may need."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:  # not compressed: weights do not get smaller
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if _NOT_NEEDED_FOLDERS & {*path.relative_to(folder).parts}:
                continue
            if path.is_file() and path.name not in _NOT_NEEDED and not path.name.startswith("."):
                files.write(path, path.relative_to(folder).as_posix())
    return archive.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as files:
        files.extractall(folder)
