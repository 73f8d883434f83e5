"""The connections of a server: how long they may keep it waiting, how many there may be, and which one has to go.

A client that connects and says nothing costs a connection for ever, unless somebody ends it. At the limit, those that
keep the server waiting make room for new ones, so that they lock nobody out even from the same address.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

_SECONDS_BETWEEN_LOOKS = 0.5
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 5\r\n\r\n"


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections of one server."""

    at_once: int = 800
    per_address: int = 600
    """Of one IPv4 address or one IPv6 network of 64 bits."""
    header_seconds: float = 10.0
    """From the connection, or from the first byte of a further request, to the end of the request's header."""
    idle_seconds: float = 5.0
    """Between two requests."""
    write_seconds: float = 30.0
    """While the client accepts nothing of a response."""
    silent_seconds: float = 1.0
    """After which a connection may be closed to make room: an honest client has sent its request by then."""


class Waiting(IntEnum):
    """What a connection waits for, in the order in which connections make room; an answer is never given up."""

    FIRST_REQUEST, UPLOAD, NEXT_REQUEST, ANSWER = range(4)


class Connections:
    """All open connections, the oldest first."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._open: dict[str, dict[Connection, None]] = {}
        self._count = 0
        self._watch: asyncio.TimerHandle | None = None

    def admit(self, connection: Connection) -> bool:
        """Add a connection; False if there is no room for it."""
        own, limits = self._open.get(connection.address, {}), self.limits
        if len(own) >= limits.per_address and not self._make_room([own]):
            return False
        if self._count >= limits.at_once and not self._make_room(list(self._open.values())):
            return False
        self._open.setdefault(connection.address, {})[connection] = None
        self._count += 1
        if self._watch is None:
            self._watch = connection.loop.call_later(_SECONDS_BETWEEN_LOOKS, self._look, connection.loop)
        return True

    def remove(self, connection: Connection) -> None:
        own = self._open.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._open[connection.address]

    def _make_room(self, groups: list[dict[Connection, None]]) -> bool:
        """End the connection that has kept the server waiting longest, of the kind that matters least."""
        for kind in (Waiting.FIRST_REQUEST, Waiting.UPLOAD, Waiting.NEXT_REQUEST):
            for group in sorted(groups, key=len, reverse=True):
                for connection in group:
                    if connection.waits_for is kind and connection.silent:
                        self.remove(connection)
                        connection.transport.abort()
                        return True
        return False

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End all connections whose time is over."""
        now = loop.time()
        for connection in [one for group in self._open.values() for one in group]:
            if connection.is_late(now):
                connection.transport.abort()
        self._watch = loop.call_later(_SECONDS_BETWEEN_LOOKS, self._look, loop) if self._count else None


class Connection(H11Protocol):
    """One connection of uvicorn's, which knows what it is waiting for."""

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._connections = connections
        self.address = ""
        self._last = self.loop.time()
        """When the client sent something."""
        self._header_since: float | None = self._last
        """When the header began that is not complete; None between requests and during one."""
        self._unsent = 0, self._last
        """Bytes of the response that the client has not accepted, and since when it has been so many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network_of(self.client)
        if not self._connections.admit(self):
            transport.write(_REFUSAL)
            transport.close()
            if transport.get_write_buffer_size():  # nobody accepts even that
                self.loop.call_later(self._connections.limits.write_seconds, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        self._last = self.loop.time()
        if self._header_since is None and self.waits_for is Waiting.NEXT_REQUEST:
            self._header_since = self._last
        super().data_received(data)
        if self.waits_for in (Waiting.UPLOAD, Waiting.ANSWER):
            self._header_since = None

    def on_response_complete(self) -> None:
        self._last = self.loop.time()  # from now on it is the client who keeps us waiting
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """The client broke the protocol. If that was in the middle of a request, the application must not answer, too:
        that would be an error of the server, with a traceback in its log for everybody who wants one."""
        if self.waits_for in (Waiting.UPLOAD, Waiting.ANSWER):
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    @property
    def waits_for(self) -> Waiting:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever its type says
        if cycle is None:
            return Waiting.FIRST_REQUEST
        if cycle.response_complete:
            return Waiting.NEXT_REQUEST
        return Waiting.UPLOAD if cycle.more_body and not self.flow.read_paused else Waiting.ANSWER

    @property
    def silent(self) -> bool:
        """Whether it has kept the server waiting for a moment; for a header, also if that comes byte by byte."""
        since = self._last if self._header_since is None else self._header_since
        return self.loop.time() - since > self._connections.limits.silent_seconds

    def is_late(self, now: float) -> bool:
        """Whether the client took too long to send a header, or to accept a response. Between two requests uvicorn
        keeps the time, and during a request its body does."""
        limits = self._connections.limits
        size = self.transport.get_write_buffer_size()
        if size == 0 or size != self._unsent[0]:
            self._unsent = size, now
        if now - self._unsent[1] > limits.write_seconds:
            return True
        return self._header_since is not None and now - self._header_since > limits.header_seconds


def network_of(client: tuple[str, int] | None) -> str:
    """The IPv4 address, or the network of an IPv6 address, of which one client usually has all addresses."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
