"""A server with a tiny model, in this process or in one of its own, and pictures to send to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from clom.data.folders import Pictures
from clom.data.images import Images
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import Method
from clom.methods.ncm import Ncm, NcmSettings
from clom.nets import AdapterSettings, PooledConvSettings
from clom.photos.teach import learn_pictures
from clom.serve.app import make_app
from clom.serve.client import Client
from clom.serve.server import make_server
from clom.serve.service import Service
from clom.serve.traffic.connections import ConnectionLimits
from clom.storage.model_file import save_model

SIDE = 32
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (20, 40, 210), "yellow": (220, 210, 30)}


def nearest_mean() -> Method:
    """Learns in no time."""
    return Ncm(AdapterSettings(weights="random", width=0.05, hidden=12), NcmSettings(), (3, SIDE, SIDE))


def slow_learner(epochs: int = 4000) -> Method:
    """Takes minutes, unless somebody ends it."""
    learning = ContrastiveSettings(plan=Plan(epochs=epochs, batch=8), head=HeadSettings(views=1, iterations=5))
    net = PooledConvSettings(channels=(8, 8, 8), hidden=12)
    return Clom(net, ClomSettings(learning=learning, memory_per_class=1), (3, SIDE, SIDE))


def coloured(name: str, count: int = 6, seed: int = 0) -> torch.Tensor:
    """Noisy pictures of one colour."""
    randomness = torch.Generator().manual_seed(seed + sum(name.encode()))
    noise = torch.randint(-20, 21, (count, 3, SIDE, SIDE), generator=randomness)
    return (noise + torch.tensor(COLOURS[name])[:, None, None]).clamp(0, 255).to(torch.uint8)


def pictures(*names: str, count: int = 10) -> Pictures:
    labels = torch.arange(len(names)).repeat_interleave(count)
    pixels = torch.cat([coloured(name, count) for name in names])
    return Pictures(names, Images(pixels, labels), tuple(Path() for _ in labels), ())


def png(pixels: torch.Tensor) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, name: str, count: int = 6, seed: int = 0) -> list[Path]:
    (folder / name).mkdir(parents=True, exist_ok=True)
    paths = [folder / name / f"{number}.png" for number in range(count)]
    for path, pixels in zip(paths, coloured(name, count, seed), strict=True):
        path.write_bytes(png(pixels))
    return paths


def warm_model(path: Path, method: Method | None = None) -> Path:
    """A model file that knows red and green."""
    method = method or nearest_mean()
    learn_pictures(method, pictures("red", "green"), "warm")
    save_model(path, method)
    return path


@contextmanager
def serving(
    path: Path, connections: ConnectionLimits | None = None, **options: Any
) -> Iterator[tuple[Client, Service]]:
    """A server in a thread, on a free port."""
    service = Service(path, threads=1, niceness=0, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(make_app(service), connections, timeout_graceful_shutdown=1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}"), service
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def serving_apart(path: Path, *options: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """`clom serve` in a process of its own."""
    command = [sys.executable, "-m", "clom", "serve", str(path), "--port", "0", "--threads", "1", "--niceness", "0"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        client = Client(line.split()[1])
        wait_until(lambda: _answers(client))
        yield client, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def _answers(client: Client) -> bool:
    try:
        return bool(client.model())
    except Exception:
        return False


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
