"""The client by itself: addresses, forms, and servers that are none."""

from __future__ import annotations

import socket
from email.parser import BytesParser
from email.policy import HTTP

import pytest

from clom.errors import UserError
from clom.serve.client import Client, encode_form


@pytest.mark.parametrize("url", ["ftp://host", "http://", "//"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UserError, match="is not the address of a server"):
        Client(url)


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    with pytest.raises(UserError, match=r"No answer from 127\.0\.0\.1:\d+.*Is `clom serve` running there\?"):
        Client(f"127.0.0.1:{free}").model()


def test_a_form_is_read_as_it_was_written() -> None:
    content = bytes(range(256))
    body, headers = encode_form([("name", "täsk"), ("pictures", ('a"b\\\r\n.png', content))])
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body)
    text, file = message.iter_parts()
    assert text.get_payload(decode=True) == "täsk".encode()
    assert file.get_payload(decode=True) == content
    assert file.get_filename() == "a'b_  .png"
