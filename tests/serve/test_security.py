"""Who may do what, and what a browser is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clom.serve.client import Client, Refused, encode_form
from clom.serve.security import Access
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


CHANGES = [("POST", "/tasks"), ("POST", "/jobs/x/resume"), ("DELETE", "/jobs/x")]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_without_the_token_nothing_changes(method: str, path: str, client: Client, tmp_path: Path) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with client.request(method, path, headers=headers) as response:
            assert response.status == 401
            assert "token" in json.load(response)["error"]
    with client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
        assert response.status in (404, 415)
    assert client.predict(write_pictures(tmp_path, "red", 1))["answers"], "asking needs no token"


def test_with_the_token_it_learns(client: Client, model: Path, tmp_path: Path) -> None:
    classes = {name: write_pictures(tmp_path, name) for name in ("blue", "yellow")}
    with pytest.raises(Refused, match="right token"):
        client.teach(classes)
    teacher = Client(client.url, TOKEN)
    job = teacher.teach(classes)
    assert teacher.cancel(job["id"])["state"] in ("cancelled", "done")


@pytest.mark.parametrize("access", [Access(read_only=True), Access(host="0.0.0.0")])
def test_a_server_that_does_not_learn(access: Access, model: Path, tmp_path: Path) -> None:
    with serving(model, access=access) as (client, _):
        for method, path in CHANGES:
            with client.request(method, path) as response:
                assert response.status == 403
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
