"""Malformed requests get an error message and do not disturb the server."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.serve.client import Client
from serve.running import coloured, png, serving, warm_model

GOOD = png(coloured("red", 1)[0])
text = st.text(max_size=20)
content = st.one_of(st.binary(max_size=60), st.just(GOOD), st.integers(1, len(GOOD)).map(lambda n: GOOD[:n]))
part = st.tuples(
    st.sampled_from(["pictures", "labels", "name", "", "Pictures"]) | text,
    st.none() | text,
    content | text.map(str.encode),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(warm_model(tmp_path_factory.mktemp("fuzz") / "model.safetensors")) as (found, _):
        yield found


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(["/predict", "/tasks"]),
    parts=st.lists(part, max_size=6),
    query=st.dictionaries(
        st.sampled_from(["task", "top", "false_rejection", "x"]), text | st.just("1e999"), max_size=3
    ),
    ending=st.sampled_from(["--x--\r\n", "--x", "", "\r\n--x\r\n"]),
)
def test_no_form_breaks_it(
    path: str, parts: list[tuple[str, str | None, bytes]], query: dict[str, str], ending: str, client: Client
) -> None:
    body = b""
    for name, file, value in parts:
        told = f'form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
        body += b"--x\r\nContent-Disposition: " + told.encode("utf-8", "replace") + b"\r\n\r\n" + value + b"\r\n"
    asked = "&".join(f"{name}={quote(value.encode('utf-8', 'replace'))}" for name, value in query.items())
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    with client.request("POST", f"{path}?{asked}", body + ending.encode(), headers) as response:
        assert response.status < 500, response.read()


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]),
    start=st.sampled_from(["/", "/jobs/", "/page/", "/model/", "/predict", "/tasks", "/jobs/x/"]),
    rest=text,
    kind=st.sampled_from(["image/png", "multipart/form-data", "multipart/form-data; boundary=", "text/plain", ""]),
    body=content,
)
def test_no_request_breaks_it(method: str, start: str, rest: str, kind: str, body: bytes, client: Client) -> None:
    path = start + quote(rest.encode("utf-8", "replace"), safe="")
    with client.request(method, path, body, {"Content-Type": kind}) as response:
        assert response.status < 500, response.read()
    with client.request("POST", "/predict", GOOD, {"Content-Type": "image/png"}) as response:
        assert response.status == 200
