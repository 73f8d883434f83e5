"""Who may do what, and what a browser is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.serve.app import make_app
from clom.serve.client import Client, Refused, encode_form
from clom.serve.security import Access, check_token
from serve.running import coloured, png, serving, warm_model, write_pictures

TOKEN = "correct horse battery"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_model(tmp_path_factory.mktemp("secure") / "model.safetensors")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[Client]:
    with serving(model, access=Access(token=TOKEN)) as (found, _):
        yield found


@pytest.mark.parametrize(
    ("host", "token", "read_only", "local", "teaching"),
    [
        ("127.0.0.1", None, False, True, True),
        ("localhost", None, False, True, True),
        ("::1", None, False, True, True),
        ("[::1]", None, False, True, True),
        ("127.0.0.1", None, True, True, False),
        ("0.0.0.0", None, False, False, False),
        ("::", None, False, False, False),
        ("192.168.1.5", None, False, False, False),
        ("example.org", None, False, False, False),
        ("0.0.0.0", "x", False, False, True),
        ("0.0.0.0", "x", True, False, False),
    ],
)
def test_teaching_beyond_this_machine_needs_a_token(
    host: str, token: str | None, read_only: bool, local: bool, teaching: bool
) -> None:
    access = Access(host, token, read_only)
    assert (access.local, access.teaching) == (local, teaching)


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Bearer wrong", TOKEN[:-1], "Bearer é", f"Basic {TOKEN}"]
)
def test_only_the_right_token_opens(given: str | None) -> None:
    assert not Access(token=TOKEN).knows(given)
    assert Access(token=TOKEN).knows(f"Bearer {TOKEN}")
    assert Access().knows(given)


@pytest.mark.parametrize("token", ["Käse", "пароль", "a" * 200, "x y"])
def test_a_token_may_have_any_letters(token: str, model: Path) -> None:
    """curl sends them as UTF-8, other clients as Latin-1 where that is possible."""
    access = Access(token=token)
    raw = f"Bearer {token}".encode().decode("latin-1")  # as Starlette decodes headers
    assert access.knows(raw)
    assert not access.knows(f"Bearer {'?' * len(token)}")
    if token == "Käse":
        assert access.knows(f"Bearer {token}")
    with serving(model, access=access) as (client, _), pytest.raises(Refused, match="no lesson"):
        Client(client.url, token).cancel("x")


@pytest.mark.parametrize("token", ["", " ", "a ", " a", "a\nb", "a\0b"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(UserError, match="token"):
        check_token(token)


def status_of(client: Client, method: str, path: str, **headers: str) -> int:
    with client.request(method, path, headers=headers) as response:
        response.read()
        return response.status


CLOSED = ["/metrics", "/docs", "/openapi.json", "/jobs", "/jobs/x", "/jobs/x/events", "/model/inspection", "/report"]
STATIC = ["/", "/page/app.js", "/page/style.css", "/health"]


def test_on_other_addresses_only_the_empty_page_is_open(model: Path, tmp_path: Path) -> None:
    picture = write_pictures(tmp_path, "red", 1)
    with serving(model, access=Access("0.0.0.0", TOKEN)) as (client, service):
        for path in [*CLOSED, "/model", "/nowhere"]:
            assert status_of(client, "GET", path) == 401, path
            assert status_of(client, "GET", path, Authorization=f"Bearer {TOKEN}") in (200, 404), path
        for path in STATIC:
            assert status_of(client, "GET", path) == 200, path
        with client.request("GET", "/health") as response:
            assert json.load(response) == {"status": "ok"}, "nothing about the model"
        with pytest.raises(Refused, match="needs the token"):
            client.predict(picture)
        assert Client(client.url, TOKEN).predict(picture)["answers"]
        listed = {path.partition("{")[0].rstrip("/") for path in make_app(service).openapi()["paths"]}
        opened = {path for path in listed if service.access.admits(path, None, None)}
        assert opened == {"/health", "/session"}, "a new route is closed unless somebody opens it"


def test_everybody_may_ask_a_public_server_and_nothing_else(model: Path, tmp_path: Path) -> None:
    picture = write_pictures(tmp_path, "red", 1)
    for token, status in ((None, 403), (TOKEN, 401)):
        with serving(model, access=Access("0.0.0.0", token, public=True)) as (client, _):
            assert client.predict(picture)["answers"]
            assert client.model()["tasks"]
            for path in CLOSED:
                assert status_of(client, "GET", path) == status, path
            assert status_of(client, "POST", "/tasks") == status


def test_on_this_machine_only_teaching_needs_the_token(client: Client) -> None:
    for path in [*CLOSED, *STATIC, "/model"]:
        assert status_of(client, "GET", path) in (200, 404), path


def test_a_browser_gets_a_cookie_for_the_token(model: Path) -> None:
    with serving(model, access=Access("0.0.0.0", TOKEN)) as (client, _):
        assert status_of(client, "POST", "/session", Authorization="Bearer wrong") == 401
        with client.request("POST", "/session", headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert response.status == 204
            cookie = response.headers["Set-Cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        sent = cookie.partition(";")[0]
        assert status_of(client, "GET", "/jobs", Cookie=sent) == 200
        assert status_of(client, "GET", "/jobs", Cookie=sent[:-1] + "?") == 401
        assert status_of(client, "DELETE", "/jobs/x", Cookie=sent) == 401, "teaching takes the token itself"


CHANGES = [
    ("POST", "/tasks"),
    ("POST", "/pictures"),
    ("POST", "/jobs/x/resume"),
    ("DELETE", "/jobs/x"),
    ("DELETE", "/tasks/x"),
    ("PATCH", "/tasks/x"),
    ("PATCH", "/classes/x"),
    ("POST", "/merge"),
    ("POST", "/undo"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_without_the_token_nothing_changes(method: str, path: str, client: Client, tmp_path: Path) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with client.request(method, path, headers=headers) as response:
            assert response.status == 401
            assert "token" in json.load(response)["error"]
    with client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
        assert response.status in (404, 415, 422)
    assert client.predict(write_pictures(tmp_path, "red", 1))["answers"], "asking needs no token"


def test_with_the_token_it_learns(client: Client, model: Path, tmp_path: Path) -> None:
    classes = {name: write_pictures(tmp_path, name) for name in ("blue", "yellow")}
    with pytest.raises(Refused, match="right token"):
        client.teach(classes)
    teacher = Client(client.url, TOKEN)
    job = teacher.teach(classes)
    assert teacher.cancel(job["id"])["state"] in ("cancelled", "done")


@pytest.mark.parametrize("access", [Access(read_only=True), Access(host="0.0.0.0", public=True)])
def test_a_server_that_does_not_learn(access: Access, model: Path, tmp_path: Path) -> None:
    with serving(model, access=access) as (client, _):
        for method, path in CHANGES:
            with client.request(method, path) as response:
                assert response.status == 403, path
        assert client.model()["server"]["teaching"] is False
        assert client.predict(write_pictures(tmp_path, "red", 1))["answers"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80", "Origin": "http://evil.example:80"}, 421),
        ({"Host": "["}, 421),
        ({}, 415),
    ],
)
def test_other_sites_are_refused(headers: dict[str, str], status: int, client: Client) -> None:
    for path in ("/tasks", "/predict"):
        sent = {"Authorization": f"Bearer {TOKEN}", **headers}
        with client.request("POST", path, b"", sent) as response:
            assert response.status == status, path


def test_the_page_itself_is_not_another_site(client: Client) -> None:
    host = client.url.removeprefix("http://")
    headers = {"Origin": client.url, "Sec-Fetch-Site": "same-origin", "Host": host, "Content-Type": "image/png"}
    with client.request("POST", "/predict", png(coloured("red", 1)[0]), headers) as response:
        assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/model", "/page/app.js", "/nowhere", "/jobs/x", "/predict"])
def test_every_answer_tells_the_browser_to_be_strict(path: str, client: Client) -> None:
    with client.request("GET", path) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Server"] is None or "uvicorn" in response.headers["Server"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/%2e%2e%2fapp.py",
        "/page//etc/passwd",
        "/page/..%5capp.py",
        "/page/__init__.py",
        "/report",
    ],
)
def test_no_path_of_a_request_reaches_the_disk(path: str, client: Client) -> None:
    with client.request("GET", path) as response:
        assert response.status == 404
        assert b"import" not in response.read()


def test_names_of_files_are_only_told_back(client: Client, tmp_path: Path) -> None:
    body, headers = encode_form([("pictures", ("../../etc/x\u202egnp.exe", png(coloured("red", 1)[0])))])
    with client.request("POST", "/predict", body, headers) as response:
        assert json.load(response)["answers"][0]["file"] == "x?gnp.exe"


def test_the_report_beside_the_model_is_shown_without_scripts(model: Path, client: Client) -> None:
    report = model.with_name("report.html")
    report.write_text("<h1>A run</h1>")
    try:
        with client.request("GET", "/report") as response:
            assert response.read() == b"<h1>A run</h1>"
            assert "sandbox" in response.headers["Content-Security-Policy"]
            assert "script-src" not in response.headers["Content-Security-Policy"]
    finally:
        report.unlink()
