"""Receiving the bodies of requests: how large each may be, all together, and how slowly they may come."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from clom.serve.traffic.limits import Limits

_CLOSE = {"Connection": "close"}


class Bodies:
    """The bodies that are being received or used. If they become too much together, one of them has to go."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.received = 0
        """Bytes since the start."""
        self._open: set[Body] = set()
        self._free_at = 0.0

    @property
    def total(self) -> int:
        return sum(body.count for body in self._open)

    def open(self, receive: Receive, most: int) -> Body:
        body = Body(self, receive, most)
        self._open.add(body)
        return body

    def close(self, body: Body) -> None:
        self._open.discard(body)

    async def pace(self, size: int) -> None:
        """Wait as long as so many bytes may take. All large bodies share one rate, so that receiving them leaves time
        for answers; the client waits, too, since nothing is read meanwhile."""
        clock = asyncio.get_running_loop().time
        self._free_at = max(clock(), self._free_at) + size / self.limits.bytes_per_second
        await asyncio.sleep(self._free_at - clock())

    def make_room(self) -> None:
        """Drop the largest of those whose client has stalled, or else the largest of all."""
        while self.total > self.limits.bytes_at_once:
            stalled = [body for body in self._open if body.stalled]
            largest = max(stalled or self._open, key=lambda body: body.count)
            self.close(largest)
            largest.drop()


class Body:
    """The body of one request."""

    def __init__(self, bodies: Bodies, receive: Receive, most: int) -> None:
        self._bodies, self._receive, self._most = bodies, receive, most
        self.count = 0
        self._complete = self._dropped = False
        self._waiting: asyncio.Timeout | None = None
        self._waiting_since = 0.0
        self._waited = 0.0
        """Seconds spent on waiting for the client."""

    @property
    def stalled(self) -> bool:
        """Whether its client has been silent for a moment."""
        silent = asyncio.get_running_loop().time() - self._waiting_since
        return self._waiting is not None and silent > self._bodies.limits.silent_seconds

    def drop(self) -> None:
        """Let `receive` fail, even while it waits."""
        self._dropped = True
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def receive(self) -> Message:
        """The next message; raises an HTTPException if the body is too large, too slow or dropped."""
        if self._complete:  # what comes now is only the end of the connection, whenever that is
            return await self._receive()
        message = await self._next()
        size = len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        self.count += size
        self._bodies.received += size
        if self.count > self._most:
            message["body"] = b""
            if not self._complete:
                await self.discard()
            raise HTTPException(413, too_large(self._most))
        if size:
            self._bodies.make_room()
            if self.count > self._bodies.limits.quick_bytes:
                await self._bodies.pace(size)
        if self._dropped:
            raise HTTPException(503, "Too much is being sent at once. Try again in a moment.", _CLOSE)
        return message

    async def discard(self) -> None:
        """Drain the body, within limits: otherwise the client sees a broken connection instead of the error."""
        count, more = 0, True
        while more and count < 2 * self._most:
            message = await self._next()
            count += len(message.get("body", b""))
            more = message.get("more_body", False)

    async def _next(self) -> Message:
        limits, clock = self._bodies.limits, asyncio.get_running_loop().time
        self._waiting_since = clock()
        try:
            async with asyncio.timeout(0 if self._dropped else limits.stall_seconds) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            if self._dropped:
                raise HTTPException(503, "Too much is being sent at once. Try again in a moment.", _CLOSE) from None
            text = f"Nothing came for {limits.stall_seconds:g} s. Send the request again."
            raise HTTPException(408, text, _CLOSE) from None
        finally:
            self._waiting = None
        self._waited += clock() - self._waiting_since
        if self._waited > limits.stall_seconds and self.count < limits.least_bytes_per_second * self._waited:
            raise HTTPException(408, "The request came too slowly. Send it again, or send less at once.", _CLOSE)
        return message


def too_large(most: int) -> str:
    return f"Too much at once: {most // 1_000_000} MB is the most. Send fewer or smaller pictures."
