"""One run done by several processes: what they must have in common, and where each of them keeps its files.

The first process has the run's folder, the others a copy of their own. So all begin where the run stands, whether or
not the machines share a disk, and write without disturbing each other; the copies are thrown away.
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

_NOT_NEEDED = ("features.safetensors", "scores.json", "report.html", "figure.svg", "figure.png")


@contextmanager
def together(launch: Launch, config: RunConfig, folder: Path) -> Iterator[Path]:
    """Work on a run with the other processes of `launch`, in the folder this gives; alone it is `folder` itself."""
    if launch.size == 1:
        yield folder
        return
    _check_method(config.method)
    with session(launch):
        require_same("settings", config.model_dump_json().encode())
        if launch.is_main:
            share(pack(folder))
            yield folder
        else:
            _follow()
            with tempfile.TemporaryDirectory(prefix="clom-") as place:
                unpack(share(b""), Path(place))
                yield Path(place)


def _check_method(name: str) -> None:
    if not method_info(name).divisible:
        able = ", ".join(sorted(other for other in BUILT_IN if BUILT_IN[other].divisible))
        raise UserError(
            f"Several processes would not make '{name}' faster: it trains networks of its own kind, which are not "
            f"divided. Start it without torchrun. Divided are: {able}."
        )


def _follow() -> None:
    """Leave it to the first process to warn and to be stopped; when it ends, talking to it fails and ends this one."""
    warnings.simplefilter("ignore")
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def load_stream(launch: Launch, config: RunConfig, data: Path | None) -> Stream:
    """The run's images, which must be the same everywhere; on each machine one process is first and downloads them."""
    if launch.size == 1:
        return config.data.stream(data, config.seed)
    if launch.local_rank == 0:
        stream = config.data.stream(data, config.seed)
    data_parallel.collective(dist.barrier)
    if launch.local_rank != 0:
        stream = config.data.stream(data, config.seed)
    require_same("images", data_digest(stream).encode())
    return stream


def share(content: bytes) -> bytes:
    """What the first process holds, to all."""
    size = torch.tensor([len(content)])
    data_parallel.collective(dist.broadcast, size, 0)
    data = torch.zeros(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0 and content:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    data_parallel.collective(dist.broadcast, data, 0)
    return data.numpy().tobytes()


def pack(folder: Path) -> bytes:
    """The files that going on with a run may need."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:  # not compressed: numbers do not get smaller
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and path.name not in _NOT_NEEDED and not path.name.startswith("."):
                files.write(path, path.relative_to(folder).as_posix())
    return archive.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as files:
        files.extractall(folder)
