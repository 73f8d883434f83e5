"""`clom serve` before it serves: where it listens, what it says, what it refuses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clom.cli import main
from clom.cli.console import Console
from clom.cli.serve import _listen, _show_address
from clom.errors import UserError
from clom.serve.security import Access


def test_listens_without_waiting_for_acknowledgements() -> None:
    with _listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP, "asyncio asks for this before it switches Nagle's algorithm off"
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_is_told_at_once(tmp_path: Path) -> None:
    with _listen("127.0.0.1", 0) as listener, pytest.raises(UserError, match="--port"):
        _listen("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(UserError, match="address of this machine"):
        _listen("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (Access(), "Open http://127.0.0.1:8000 in a browser"),
        (Access("::1"), "Open http://[::1]:8000"),
        (Access(read_only=True), "read-only"),
        (Access("0.0.0.0", public=True), "it needs --token"),
        (Access("0.0.0.0", public=True), "Everybody may ask"),
        (Access("0.0.0.0", "hunter2"), "Everything but the empty page requires the token"),
        (Access("0.0.0.0", "hunter2"), "Teaching requires the token"),
        (Access("0.0.0.0", "hunter2"), "not encrypted"),
    ],
)
def test_says_where_it_is_and_never_the_secret(access: Access, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show_address(Console(width=200), access, 8000)
    out = capsys.readouterr().out
    assert said in out
    assert "hunter2" not in out


def test_another_address_needs_a_token_or_a_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path / "m.model"), "--host", "0.0.0.0"])
    assert "use --public to let everybody ask" in capsys.readouterr().err
    assert not (tmp_path / "m.model").exists()


def test_a_read_only_server_creates_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path / "m.model"), "--read-only", "--port", "0"])
    assert "a read-only server does not create one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path / "m.model"), "--token", " "])
    assert "token is empty" in capsys.readouterr().err
    assert not (tmp_path / "m.model").exists()
