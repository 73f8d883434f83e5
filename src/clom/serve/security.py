"""Access control and security headers."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clom.errors import UserError
from clom.serve.traffic.bodies import Bodies, too_large

TEACHING = ("/tasks", "/pictures")
"""What pictures to learn from are sent to."""
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


OPEN = ("/", "/health", "/session")
"""Needs no token anywhere: the page itself, which holds no data, whether the server runs, and showing the token."""
ASKING = ("/predict", "/model")
"""What `--public` opens on other addresses."""


@dataclass(frozen=True)
class Access:
    """The listening address, and who may do what."""

    host: str = "127.0.0.1"
    token: str | None = None
    read_only: bool = False
    public: bool = False
    """Whether everybody may ask, also on an address that others can reach."""

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
        # Headers are bytes, which Starlette decodes as Latin-1. Clients send other letters in either encoding.
        given = (authorization or "").removeprefix("Bearer ").encode("latin-1", "backslashreplace")
        same = hmac.compare_digest(given, self.token.encode())
        if _is_latin(self.token):
            same |= hmac.compare_digest(given, self.token.encode("latin-1"))
        return same

    @property
    def session(self) -> str:
        """What a browser gets for the token, as a cookie that scripts cannot read."""
        return hmac.new((self.token or secrets.token_hex()).encode(), b"clom session", "sha256").hexdigest()

    def admits(self, path: str, authorization: str | None, session: str | None) -> bool:
        """Whether a request may be answered at all. Training has further conditions."""
        if self.local or path in OPEN or path.startswith("/page/") or (self.public and path in ASKING):
            return True
        if self.token is None:
            return False
        return self.knows(authorization) or hmac.compare_digest((session or "").encode(), self.session.encode())


def check_token(token: str) -> None:
    """Raise for a token that no request could carry."""
    if not token.strip():
        raise UserError("The token is empty. Choose one that is hard to guess, or omit --token.")
    if token != token.strip() or not token.isprintable():
        raise UserError("The token begins or ends with a space, or has characters that a header cannot carry.")


def session_cookie(scope: Scope) -> str:
    """Its name. Cookies are shared by all ports of a machine, so the port is a part of it."""
    return f"clom-session-{(scope.get('server') or ('', 0))[1]}"


class Guard:
    """Around the whole application: refuses foreign names, foreign sites and who has no access, counts bytes, adds
    headers.

    A page of another site can send pictures to this one, and can give its own name our address; both are refused, the
    first by where the browser says that the request comes from, the second by the name that it asked for.
    """

    def __init__(self, app: ASGIApp, access: Access, bodies: Bodies) -> None:
        self.app, self.access, self.bodies = app, access, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = _with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers) or self._without_token(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        limits = self.bodies.limits
        most = limits.teach_bytes if scope["path"] in TEACHING else limits.ask_bytes
        declared = headers.get("content-length", "0")
        body = self.bodies.open(receive, most)
        try:
            if declared.isdecimal() and int(declared) > most:
                await body.discard()
                await _problem(413, too_large(most))(scope, receive, send)
            else:
                await self.app(scope, body.receive, send)
        except HTTPException as problem:  # outside of the application: the body could not even be discarded
            await _problem(problem.status_code, problem.detail, problem.headers)(scope, receive, send)
        finally:
            self.bodies.close(body)

    def _without_token(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        cookie = cookie_parser(headers.get("cookie", "")).get(session_cookie(scope))
        if self.access.admits(scope["path"], headers.get("authorization"), cookie):
            return None
        if self.access.token is None:
            return _problem(403, "This is closed on a server without a token.")
        return _problem(401, "This needs the token of the server.", {"WWW-Authenticate": "Bearer"})

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


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def _is_latin(text: str) -> bool:
    return all(ord(letter) < 256 for letter in text)


def _name_of(host: str) -> str:
    """The Host header without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
