"""Access control, request limits and security headers."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; base-uri 'none'; frame-ancestors 'none'"
)
"""For reports: a single file with inline styles and images, no scripts."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """Limits of a single request."""

    ask_bytes: int = 64_000_000
    ask_pictures: int = 64
    teach_bytes: int = 1_000_000_000
    teach_pictures: int = 2_000
    teach_classes: int = 100
    picture_bytes: int = 40_000_000
    decoded_bytes: int = 1_000_000_000
    """Decoded images of one training job."""
    bytes_at_once: int = 1_500_000_000
    """Total of all requests being read."""


@dataclass(frozen=True)
class Access:
    """The listening address, and who may train."""

    host: str = "127.0.0.1"
    token: str | None = None
    read_only: bool = False

    @property
    def local(self) -> bool:
        """Whether the server is reachable from this machine only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def teaching(self) -> bool:
        """Whether training is enabled: on non-loopback addresses only with a token."""
        return not self.read_only and (self.local or self.token is not None)

    def knows(self, authorization: str | None) -> bool:
        """Whether the header carries the token, compared in constant time."""
        if self.token is None:
            return True
        given = (authorization or "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


class Guard:
    """Around the whole application: refuses foreign names and foreign sites, counts bytes, adds headers.

    A page of another site can send pictures to this one, and can give its own name our address; both are refused, the
    first by where the browser says that the request comes from, the second by the name that it asked for.
    """

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self.app, self.access, self.limits = app, access, limits
        self.reading = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = _with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        most = self.limits.teach_bytes if scope["path"] == "/tasks" else self.limits.ask_bytes
        declared = headers.get("content-length", "0")
        body = _Body(self, receive, most)
        try:
            if declared.isdecimal() and int(declared) > most:
                await body.discard()
                await _problem(413, too_large(most))(scope, receive, send)
            else:
                await self.app(scope, body.receive, send)
        finally:
            self.reading -= body.count

    def _refusal(self, method: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if self.access.local and _name_of(host) not in {"localhost", "127.0.0.1", "::1", self.access.host.strip("[]")}:
            return _problem(421, "This server answers to the name of this machine only, such as 127.0.0.1.")
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"} or (
            origin is not None and urlsplit(origin).netloc != host
        ):
            return _problem(403, "Requests from pages of other sites are refused.")
        return None


class _Body:
    """Counts the received bytes of one request."""

    def __init__(self, guard: Guard, receive: Receive, most: int) -> None:
        self._guard, self._receive, self._most = guard, receive, most
        self.count = 0

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self.count += size
        self._guard.reading += size
        if self.count > self._most:
            message["body"] = b""
            if message.get("more_body"):
                await self.discard()
            raise HTTPException(413, too_large(self._most))
        if self._guard.reading > self._guard.limits.bytes_at_once:
            raise HTTPException(503, "Too much is being sent at once. Try again in a moment.")
        return message

    async def discard(self) -> None:
        """Drain the body, within limits: otherwise the client sees a broken connection instead of the error."""
        count, more = 0, True
        while more and count < 2 * self._most:
            message = await self._receive()
            count += len(message.get("body", b""))
            more = message.get("more_body", False)


def too_large(most: int) -> str:
    return f"Too much at once: {most // 1_000_000} MB is the most. Send fewer or smaller pictures."


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _problem(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)


def _name_of(host: str) -> str:
    """The Host header without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
