"""The static files of the page, and the report. The set of files is fixed at start-up.

Tested by tests/serve/test_security.py.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from clom.serve.security import REPORT_POLICY
from clom.serve.service import Service

_ASSETS = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        (
            "app.js",
            "api.js",
            "ask.js",
            "camera.js",
            "changes.js",
            "docs.js",
            "dom.js",
            "inside.js",
            "lesson.js",
            "mistakes.js",
            "teach.js",
            "zip.js",
        ),
        "text/javascript",
    ),
}


def add_pages(app: FastAPI, service: Service) -> None:
    folder = files("clom.serve.web") / "page"
    assets = {name: (folder / name).read_bytes() for name in _ASSETS}

    def asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(404, "There is no such page.")
        return Response(assets[name], media_type=_ASSETS[name])

    app.get("/", include_in_schema=False)(lambda: asset("index.html"))
    app.get("/docs", include_in_schema=False)(lambda: asset("docs.html"))
    app.get("/page/{name}", include_in_schema=False)(asset)

    @app.get("/report", include_in_schema=False)
    def report() -> Response:
        if service.report is None:
            raise HTTPException(404, "No report lies beside this model.")
        content = service.report.read_bytes()
        return HTMLResponse(content, headers={"Content-Security-Policy": REPORT_POLICY})
