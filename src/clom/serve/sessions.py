"""The token as a cookie, for what a browser requests without our scripts: links and progress events.

Tested by tests/serve/test_security.py.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from clom.serve.security import Access, session_cookie
from clom.serve.service import Service


def may_see(access: Access, request: Request) -> bool:
    """Whether the request may be told about the model."""
    cookie = request.cookies.get(session_cookie(request.scope))
    return access.admits("/model", request.headers.get("authorization"), cookie)


def add_sessions(app: FastAPI, service: Service) -> None:
    @app.post("/session", status_code=204, summary="Exchange the token for a cookie, as the page does")
    async def session(request: Request) -> Response:
        access, response = service.access, Response(status_code=204)
        if not access.knows(request.headers.get("authorization")):
            raise HTTPException(401, "This is not the token of the server.", {"WWW-Authenticate": "Bearer"})
        response.set_cookie(session_cookie(request.scope), access.session, httponly=True, samesite="strict")
        return response
