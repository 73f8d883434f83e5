"""The uvicorn server around the application: its timeouts and its limits.

Tested by tests/serve/test_connections.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import uvicorn

from clom.serve.app import make_app
from clom.serve.connections import Connection, ConnectionLimits, Connections
from clom.serve.service import Service

_LONGEST_HEADER = 32_000


def make_server(service: Service, limits: ConnectionLimits | None = None, **options: Any) -> uvicorn.Server:
    """The server of a model; `options` are passed to uvicorn."""
    connections = Connections(limits)
    usual: dict[str, Any] = {
        "http": partial(Connection, connections),
        "log_level": "error",  # a warning about every invalid request would let anybody fill the disk
        "access_log": False,
        "server_header": False,
        "h11_max_incomplete_event_size": _LONGEST_HEADER,
        "timeout_keep_alive": connections.limits.idle_seconds,
        "timeout_graceful_shutdown": 2,
        "ws": "none",
    }
    return uvicorn.Server(uvicorn.Config(make_app(service), **(usual | options)))
