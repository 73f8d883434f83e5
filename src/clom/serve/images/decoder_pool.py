"""A pool of decoder processes for untrusted pictures: each may crash, run out of memory or hang."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clom.errors import DataError
from clom.serve.images.decoder import GOOD, QUESTION, REPLY, SIZE

Square = NDArray[np.uint8]
"""`[3, side, side]`."""


class Photo(NamedTuple):
    """A decoded picture, and its width and height as it was sent."""

    square: Square
    size: tuple[int, int]


_MEMORY = 1_200_000_000
"""Memory limit of a decoder in bytes: twice the need of the largest accepted picture."""


@dataclass(frozen=True)
class Unreadable:
    """An uploaded file that could not be decoded, and why."""

    file: str
    reason: str


class Decoders:
    """A small pool; processes are started on demand and replaced when they die."""

    def __init__(self, count: int = 2, seconds: float = 10.0, memory: int = _MEMORY) -> None:
        self._count, self._seconds, self._memory = count, seconds, memory
        self.turn = asyncio.Semaphore(2 * count)
        """For reading a picture before it is decoded, so that those of few are in memory."""
        self._free: asyncio.Queue[Process | None] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(None)

    async def decode(self, content: bytes, size: int) -> Photo:
        """The central square of the picture; raises `DataError` with the reason."""
        process = await self._free.get()
        try:
            if process is None or process.returncode is not None:
                process = await self._start()
            status, reply = await asyncio.wait_for(_ask(process, content, size), self._seconds)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as problem:
            await _end(process)
            process = None
            slow = isinstance(problem, TimeoutError)
            reason = f"took longer than {self._seconds:g} s" if slow else "needs too much memory, or breaks the decoder"
            raise DataError(f"cannot be decoded: it {reason}") from None
        except BaseException:  # cancelled: the rest of the response is still in the pipe
            await _end(process)
            process = None
            raise
        finally:
            self._free.put_nowait(process)
        if status != GOOD:
            raise DataError(reply.decode(errors="replace"))
        square = np.frombuffer(reply, np.uint8, offset=SIZE.size).reshape(size, size, 3)
        width, height = SIZE.unpack_from(reply)
        return Photo(np.ascontiguousarray(square.transpose(2, 0, 1)), (width, height))

    async def stop(self) -> None:
        for _ in range(self._count):
            await _end(await self._free.get())

    async def _start(self) -> Process:
        command = [sys.executable, "-m", "clom.serve.images.decoder", str(self._memory), str(int(self._seconds) + 5)]
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=child_environment())


def child_environment() -> Mapping[str, str]:
    """Environment of subprocesses: without secrets, and one thread by default."""
    inherited = {name: value for name, value in os.environ.items() if name != "CLOM_TOKEN"}
    return inherited | {"OPENBLAS_NUM_THREADS": "1"}


async def _ask(process: Process, content: bytes, size: int) -> tuple[int, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(QUESTION.pack(size, len(content)))
    process.stdin.write(content)
    await process.stdin.drain()
    status, length = REPLY.unpack(await process.stdout.readexactly(REPLY.size))
    return status, await process.stdout.readexactly(length)


async def _end(process: Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()
        await process.wait()
