"""Clients that keep the server waiting lock nobody out, and do not stay for ever."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from clom.serve.client import Client
from clom.serve.traffic.connections import ConnectionLimits, network_of
from serve.running import coloured, png, serving, serving_apart, wait_until, warm_model, write_pictures

FEW = ConnectionLimits(at_once=12, per_address=8, header_seconds=1.5, silent_seconds=0.2)
PICTURE = png(coloured("red", 1)[0])
MANY = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_model(tmp_path_factory.mktemp("connections") / "model.safetensors")


@pytest.fixture
def client(model: Path) -> Iterator[Client]:
    with serving(model, FEW) as (found, _):
        yield found


def connected(client: Client, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    host, _, port = client.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), 10, (source, 0))
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
        return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def status_of(connection: socket.socket) -> int:
    """Of one response, which is read to its end."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


HALF_OPEN = [
    b"",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 50000\r\n\r\nabc",
    b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 50000\r\n\r\n--x\r\n",
]


@pytest.mark.parametrize("sent", HALF_OPEN, ids=["nothing", "header", "picture", "lesson"])
def test_many_that_say_nothing_lock_nobody_out(sent: bytes, client: Client, tmp_path: Path) -> None:
    """Not even from the same address; their number is beyond every limit."""
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(connected(client, sent))
            time.sleep(0.01)
        time.sleep(2 * FEW.silent_seconds)  # until an upload counts as stalled
        for path in write_pictures(tmp_path, "red", 3):
            assert client.predict([path])["answers"][0]["guesses"][0]["class_name"] == "red"


def test_connections_in_use_are_never_given_up(client: Client) -> None:
    """A client that asks on one connection, while others only connect, never loses it."""
    place = client.url.removeprefix("http://")
    with ExitStack() as stack, closing(HTTPConnection(place, timeout=10)) as honest:
        for _ in range(MANY):
            honest.request("POST", "/predict", PICTURE, {"Content-Type": "image/png"})
            stack.enter_context(connected(client))
            response = honest.getresponse()
            assert response.status == 200
            assert response.read()


def test_a_header_has_to_come_in_time(client: Client) -> None:
    """However slowly its client goes on sending it."""
    with connected(client, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n") as slow:
        started = time.monotonic()
        while time.monotonic() - started < 10:
            try:
                slow.sendall(b"X: y\r\n")
            except ConnectionError:
                break
            time.sleep(0.1)
        assert time.monotonic() - started < 5


def test_a_second_header_has_to_come_in_time(client: Client) -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(client, whole) as kept:
        assert status_of(kept) == 200
        kept.sendall(whole[:-2])
        assert is_closed(kept, 5)


def test_a_response_that_nobody_reads_ends(model: Path) -> None:
    limits = ConnectionLimits(write_seconds=1.0)
    report = model.with_name("report.html")
    report.write_bytes(b"x" * 30_000_000)  # more than the buffers of the system hold
    try:
        request = b"GET /report HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with serving(model, limits) as (client, _), connected(client, request) as stuck:
            time.sleep(3)
            received = 0
            with suppress(ConnectionError):
                while part := stuck.recv(1 << 20):
                    received += len(part)
            assert received < 30_000_000
    finally:
        report.unlink()


def test_too_many_of_one_address_leave_room_for_others(client: Client) -> None:
    with ExitStack() as stack:
        busy = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        others = [stack.enter_context(connected(client, busy, "127.0.0.9")) for _ in range(3)]
        for other in others:
            assert status_of(other) == 200
        crowd = [stack.enter_context(connected(client)) for _ in range(MANY)]
        wait_until(lambda: sum(is_closed(one, 0.01) for one in crowd) >= MANY - FEW.per_address, 10)
        for other in others:
            other.sendall(busy)
            assert status_of(other) == 200, "it was ended for others"


def test_a_header_without_end_is_refused(client: Client) -> None:
    with connected(client, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ") as endless:
        sent = 0
        with suppress(ConnectionError):
            while sent < 10_000_000:
                sent += endless.send(b"x" * 10_000)
                time.sleep(0.001)
        assert sent < 10_000_000


@pytest.mark.parametrize("after", [b"zz\r\n", b"5\r\nabcdefgh\r\n"], ids=["size", "length"])
def test_a_broken_body_is_no_error_of_the_server(
    after: bytes, client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each would be a traceback in the log, as long as somebody sends them."""
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(client, head) as broken:
        time.sleep(0.1)  # until the application waits for the body
        broken.sendall(after)
        assert status_of(broken) == 400
    assert client.predict(write_pictures(tmp_path, "red", 1))["answers"]
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory from /proc")
def test_stalled_uploads_take_no_memory_and_nobody_is_locked_out(model: Path, tmp_path: Path) -> None:
    size, count = 20_000_000, 15
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    (picture,) = write_pictures(tmp_path, "red", 1)
    with serving_apart(model) as (client, server), ExitStack() as stack:
        client.predict([picture])
        before = resident_bytes(server.pid)
        for _ in range(count):
            stack.enter_context(connected(client, head % (2 * size) + bytes(size)))
        assert client.predict([picture])["answers"][0]["guesses"][0]["class_name"] == "red"
        assert resident_bytes(server.pid) - before < count * size / 4
        stack.close()
        wait_until(lambda: resident_bytes(server.pid) - before < 40_000_000, 20)


@pytest.mark.parametrize(
    ("client", "network"),
    [
        (("192.168.1.5", 80), "192.168.1.5"),
        (("2001:db8:1:2:3:4:5:6", 80), "2001:db8:1:2::/64"),
        (("::ffff:10.0.0.1", 80), "10.0.0.1"),
        (("fe80::1%eth0", 80), "fe80::/64"),
        (None, ""),
    ],
)
def test_an_address_is_counted_as_one_client(client: tuple[str, int] | None, network: str) -> None:
    assert network_of(client) == network


def test_the_burst_of_an_attack_does_not_push_out_a_client_that_just_connected(model: Path) -> None:
    """It has connected, and more others than one address may have do so, before it sends its request."""
    with serving(model, ConnectionLimits(at_once=20, per_address=20)) as (client, _), ExitStack() as stack:
        honest = stack.enter_context(connected(client))
        for _ in range(MANY):
            stack.enter_context(connected(client))
        time.sleep(0.2)
        honest.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(honest) == 200
