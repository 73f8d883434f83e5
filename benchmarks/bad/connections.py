"""Connections that keep a server waiting: half a header, half a body, a response that nobody reads, and many of them.

The server's own protocol and application run in this process on transports that are only memory, so that nothing is
started and nothing leaves it. Every case ends with an honest request, which has to be answered, and after its time no
connection of the attacker may be left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil
from benchmarks.bad.models import learned
from clom.errors import DataError
from clom.serve.app import make_app
from clom.serve.security import Access
from clom.serve.server import make_server
from clom.serve.service import Service
from clom.serve.traffic.connections import Connection, ConnectionLimits, Connections
from clom.serve.traffic.limits import Limits
from clom.storage.tensors import to_bytes

_FILE = "conversation.json"
_LIMITS = ConnectionLimits(
    at_once=20, per_address=10, header_seconds=0.2, idle_seconds=1, write_seconds=0.2, silent_seconds=0.05
)
_BODIES = Limits(stall_seconds=0.2, bytes_at_once=300_000, silent_seconds=0.05)
_HONEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_PATIENCE = 9.0  # seconds; the server needs two, unless the machine is busy
_PICTURE = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
_HEADS = {
    "predict": _PICTURE + b"Content-Length: 100000\r\n\r\n",
    "chunked": _PICTURE + b"Transfer-Encoding: chunked\r\n\r\n",
    "form": b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 100000\r\n\r\n--x\r\nContent-Disposition: form-data; name=pictures; filename=a\r\n\r\n",
    "too large": b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
    "expecting": b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "model": b"GET /model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "page": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
}


class Memory(asyncio.Transport):
    """The other end of a connection. One that is `deaf` accepts no response."""

    def __init__(self, address: str, deaf: bool) -> None:
        super().__init__()
        self.address, self.deaf = address, deaf
        self.received, self.unsent, self.closing, self.ended = b"", 0, False, False
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self.address, 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None:
        if self.deaf:
            self.unsent += len(data)
        else:
            self.received += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        if not self.unsent:
            self.abort()

    def abort(self) -> None:
        if not self.ended:
            self.closing = self.ended = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Errors(logging.Handler):
    """Collects what the server logs as its own errors: nobody may be able to fill its log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class NoDecoders:
    """In place of the processes that decode pictures, which must not be started here."""

    turn = asyncio.Semaphore(4)

    async def decode(self, content: bytes, size: int) -> None:
        raise DataError("is no picture")

    async def stop(self) -> None: ...


@cache
def model() -> bytes:
    return to_bytes(*learned())


async def converse(folder: Path, script: Mapping[str, Any]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(model())
    service = Service(path, Access(), _BODIES, threads=1)
    service.decoders = NoDecoders()  # type: ignore[assignment]
    server: Config = make_server(make_app(service), _LIMITS).config
    server.load()
    connections, state = Connections(_LIMITS), ServerState()

    def connect(address: str, deaf: bool = False) -> Memory:
        transport = Memory(address, deaf)
        transport.protocol = Connection(connections, config=server, server_state=state, app_state={})
        transport.protocol.connection_made(transport)
        return transport

    errors = Errors()
    logging.getLogger("uvicorn.error").addHandler(errors)
    opened = [connect(script["address"], script["deaf"]) for _ in range(script["count"])]
    try:
        for part in script["parts"]:
            for transport in opened:
                if not transport.closing:
                    transport.protocol.data_received(part.encode("latin-1"))
            await asyncio.sleep(script["pause"])
        await asyncio.sleep(2 * _LIMITS.silent_seconds)  # from when on an upload counts as stalled
        honest = connect("127.0.0.1")
        honest.protocol.data_received(_HONEST)
        await _until(lambda: honest.received.startswith(b"HTTP/1.1 200"), "an honest request is not answered")
        await _until(lambda: all(transport.ended for transport in opened), "a connection of the attacker is left")
        await _until(lambda: not state.tasks and service.bodies.total == 0, "requests of the attacker are left")
    finally:
        logging.getLogger("uvicorn.error").removeHandler(errors)
        await service.engine.stop()
    assert errors.texts == []


async def _until(condition: Any, problem: str) -> None:
    until = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < until, problem
        await asyncio.sleep(0.02)


def _script(*parts: bytes, count: int = 30, deaf: bool = False, address: str = "127.0.0.1", pause: float = 0.0) -> Make:
    texts = [part.decode("latin-1") for part in parts]
    content = {"parts": texts, "count": count, "deaf": deaf, "address": address, "pause": pause}
    return lambda folder, _: (folder / _FILE).write_text(json.dumps(content))


def _special() -> Mapping[str, Make]:
    found = {"silence": _script(), "silence from elsewhere": _script(address="10.0.0.1")}
    for name, head in _HEADS.items():
        found[f"half a header of {name}"] = _script(head[: len(head) // 2])
        found[f"{name}, then silence"] = _script(head)
        found[f"{name}, then a part"] = _script(head, b"x" * 50_000)
        found[f"{name}, nobody reads"] = _script(head, b"x" * 10, deaf=True)
        found[f"{name} again and again"] = _script(*[head] * 20, count=5)
    found["a header byte by byte"] = _script(*(bytes([byte]) for byte in _HEADS["predict"][:-1]), pause=0.02)
    found["a header without end"] = _script(*[b"GET / HTTP/1.1\r\nX: ", *[b"x" * 30_000] * 20])
    found["a body byte by byte"] = _script(_HEADS["predict"], *[b"x"] * 40, pause=0.05)
    found["a chunk without end"] = _script(_HEADS["chunked"], b"ffffffff\r\n", *[b"x" * 60_000] * 30, count=12)
    return found


def _chance(folder: Path, randomness: Random) -> None:
    head = _HEADS[randomness.choice(sorted(_HEADS))]
    content = spoil(head + b"x" * randomness.choice((0, 10, 100_000)), randomness)
    size = randomness.choice((len(content) + 1, len(content) // 3 + 1, 1000))
    parts = [content[start : start + size] for start in range(0, len(content), size)][:100]
    count, deaf = randomness.choice((1, 5, 30)), randomness.random() < 0.3
    address = randomness.choice(("127.0.0.1", "10.0.0.1", "2001:db8::1"))
    pause = randomness.choice((0.0, 0.0, 0.01))
    _script(*parts, count=count, deaf=deaf, address=address, pause=pause)(folder, randomness)


def _read(folder: Path) -> None:
    asyncio.run(converse(folder, json.loads((folder / _FILE).read_text())))


def readers() -> list[Reader]:
    return [Reader("half-open connections", _special, _chance, _read)]
