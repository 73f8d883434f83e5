"""The uvicorn server around the application: its timeouts and its limits.

Tested by tests/serve/traffic/test_connections.py.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from clom import machine
from clom.serve.traffic.connections import Connection, ConnectionLimits, Connections

_LONGEST_HEADER = 32_000
_ACCEPTED_AT_ONCE = 32
_WAITING = 2048


class Server(uvicorn.Server):
    """Accepts few connections at once, so that what they send is read before many others come, which might end one that
    has not said anything yet; those that wait do so in the system."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_WAITING)  # asyncio takes both numbers from `backlog`


def make_server(app: FastAPI, limits: ConnectionLimits | None = None, **options: Any) -> uvicorn.Server:
    """The server of an application; `options` are passed to uvicorn."""
    connections = Connections(limits)
    machine.allow_open_files(4 * connections.limits.at_once)  # an upload has a temporary file, too
    usual: dict[str, Any] = {
        "http": partial(Connection, connections),
        "log_level": "error",  # a warning about every invalid request would let anybody fill the disk
        "access_log": False,
        "server_header": False,
        "backlog": _ACCEPTED_AT_ONCE,
        "h11_max_incomplete_event_size": _LONGEST_HEADER,
        "timeout_keep_alive": connections.limits.idle_seconds,
        "timeout_graceful_shutdown": 2,
        "ws": "none",
    }
    return Server(uvicorn.Config(app, **(usual | options)))
