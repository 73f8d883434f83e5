"""API client that uses only the standard library.

from clom.serve.client import Client

model = Client("http://127.0.0.1:8000")
for answer in model.predict([Path("garden.jpg")])["answers"]:
    print(answer["file"], "unknown" if answer["unknown"] else answer["guesses"][0]["class_name"])
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from clom.errors import UserError
from clom.ood.rejection import FALSE_REJECTION

Body = bytes | Iterable[bytes] | None
Fields = Sequence[tuple[str, str | tuple[str, bytes]]]
"""A form field: name and text, or name, file name and content."""


class Refused(UserError):
    """The server rejected the request; the message has the reason."""

    def __init__(self, status: int, text: str, unreadable: Sequence[dict[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.unreadable = unreadable
        """Files that could not be decoded, each with a `reason`."""


class Client:
    """Client of a `clom serve` server."""

    def __init__(self, url: str, token: str | None = None, seconds: float = 60.0) -> None:
        place = urlsplit(url if "//" in url else f"http://{url}")
        if place.scheme not in ("http", "https") or not place.hostname:
            raise UserError(f"'{url}' is not the address of a server, such as http://127.0.0.1:8000")
        self.url, self._place, self._seconds = url, place, seconds
        # As bytes, since http.client would encode text as Latin-1, which not every token can be.
        self._headers: dict[str, str | bytes] = {"Authorization": f"Bearer {token}".encode()} if token else {}

    def model(self) -> dict[str, Any]:
        return self._json("GET", "/model")

    def predict(
        self, pictures: Sequence[Path], task: str | None = None, top: int = 3, false_rejection: float = FALSE_REJECTION
    ) -> dict[str, Any]:
        """Classify pictures; `answers` has one entry per file."""
        options = {"top": top, "false_rejection": false_rejection} | ({} if task is None else {"task": task})
        files = [("pictures", (path.name, path.read_bytes())) for path in pictures]
        return self._json("POST", f"/predict?{urlencode(options)}", files)

    def teach(self, classes: Mapping[str, Sequence[Path]], name: str = "") -> dict[str, Any]:
        """Start training new classes from pictures; returns the job."""
        files = [(label, path) for label, paths in classes.items() for path in paths]
        fields: list[tuple[str, str | tuple[str, bytes]]] = [("name", name)]
        fields += [("labels", label) for label, _ in files]
        fields += [("pictures", (path.name, path.read_bytes())) for _, path in files]
        return self._json("POST", "/tasks", fields)

    def add(self, classes: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
        """Start adding pictures to known classes; returns the job."""
        files = [(label, path) for label, paths in classes.items() for path in paths]
        fields: list[tuple[str, str | tuple[str, bytes]]] = [("labels", label) for label, _ in files]
        fields += [("pictures", (path.name, path.read_bytes())) for _, path in files]
        return self._json("POST", "/pictures", fields)

    def forget(self, task: str) -> dict[str, Any]:
        return self._json("DELETE", f"/tasks/{quote(task, safe='')}")

    def undo(self) -> dict[str, Any]:
        """Take back the last change of the model."""
        return self._json("POST", "/undo")

    def job(self, number: str) -> dict[str, Any]:
        return self._json("GET", f"/jobs/{quote(number, safe='')}")

    def follow(self, number: str) -> Iterator[dict[str, Any]]:
        """Yield the job whenever it changes, until it ends."""
        with self.request("GET", f"/jobs/{quote(number, safe='')}/events") as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def cancel(self, number: str) -> dict[str, Any]:
        return self._json("DELETE", f"/jobs/{quote(number, safe='')}")

    def resume(self, number: str) -> dict[str, Any]:
        return self._json("POST", f"/jobs/{quote(number, safe='')}/resume")

    def request(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> HTTPResponse:
        """The streaming response; an iterable body is sent in chunks."""
        kind = HTTPSConnection if self._place.scheme == "https" else HTTPConnection
        connection = kind(self._place.hostname or "", self._place.port, timeout=self._seconds)
        try:
            sent: Mapping[str, Any] = {**self._headers, **(headers or {})}
            connection.request(method, self._place.path.rstrip("/") + path, body, sent)
            return connection.getresponse()
        except (OSError, HTTPException) as problem:
            reason = str(problem) or type(problem).__name__
            raise UserError(f"No answer from {self.url}: {reason}. Is `clom serve` running there?") from None

    def _json(self, method: str, path: str, fields: Fields | None = None) -> dict[str, Any]:
        body, headers = (None, {}) if fields is None else encode_form(fields)
        with self.request(method, path, body, headers) as response:
            content = response.read()
        try:
            found: dict[str, Any] = json.loads(content)
        except ValueError:
            raise UserError(f"{self.url} answers, but it is not a server of `clom serve`.") from None
        if response.status >= 400:
            reason = found.get("error", f"status {response.status}")
            raise Refused(response.status, reason, found.get("unreadable", ()))
        return found


def encode_form(fields: Fields) -> tuple[bytes, dict[str, str]]:
    """A multipart form and its headers."""
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'
        if isinstance(value, str):
            parts += [f"{head}\r\n\r\n".encode(), value.encode()]
        else:
            file = value[0].replace("\\", "_").replace('"', "'").replace("\r", " ").replace("\n", " ")
            head += f'; filename="{file}"\r\nContent-Type: application/octet-stream\r\n\r\n'
            parts += [head.encode("utf-8", "replace"), value[1]]
        parts.append(b"\r\n")
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}"}
