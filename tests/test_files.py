"""Reading files: regular files only, of limited size, UTF-8 text."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.errors import DataError
from clom.files import check_regular, parse_json, read_bytes, read_json, read_text, write_json


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, limit=5) == b"12345"
    with pytest.raises(DataError, match=r"file is too large: expected at most 4 bytes"):
        read_bytes(path, limit=4)


def test_text_must_be_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("é".encode("utf-8-sig"))
    assert read_text(path) == "é"
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8 text"):
        read_text(path)


def test_folders_pipes_and_devices_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(DataError, match=what):
            read_bytes(path)
    check_regular(tmp_path / "absent")
    with pytest.raises(DataError, match=r"absent: No such file"):
        read_bytes(tmp_path / "absent")


@pytest.mark.parametrize("name", ["n" * 5000, "zero\0byte"])
def test_invalid_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="Cannot read"):
        read_bytes(tmp_path / name)


@settings(max_examples=50, deadline=None)
@given(st.text() | st.integers(1, 10**5).map(lambda depth: "[" * depth))
def test_parsing_json_raises_only_value_errors(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_json(text)


def test_names_and_values_come_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "file.json", {"é": [1, None]})
    assert read_json(tmp_path / "a" / "file.json") == {"é": [1, None]}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file.json"]


@pytest.mark.parametrize("content", ["", "[1]", "3", "{", "[" * 10**5])
def test_a_file_of_anything_else_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(DataError, match=r"file\.json"):
        read_json(tmp_path / "file.json")
