"""Reading files: regular files only, of limited size, UTF-8 text."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.errors import DataError
from clom.files import (
    check_regular,
    file_state,
    hidden_neighbour,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    remove_temporary_files,
    write_atomically,
    write_json,
)


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, limit=5) == b"12345"
    with pytest.raises(DataError, match=r"file is too large: expected at most 4 bytes"):
        read_bytes(path, limit=4)


def test_no_more_memory_is_reserved_than_a_file_needs(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_bytes(path, limit=10**9) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


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


def test_a_file_that_becomes_a_pipe_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("clom.files.check_regular", lambda path: None)  # was a file when it was looked at
    with pytest.raises(DataError, match="a pipe"):
        read_bytes(tmp_path / "pipe")


# --- writing ---------------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("before", [0o600, 0o640, 0o444, 0o666])
def test_permissions_are_kept(tmp_path: Path, before: int) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    assert mode(path) == 0o666 & ~_umask()
    path.chmod(before)
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", before)


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", list[int]()
    write_atomically(path, b"old")
    path.chmod(0o600)
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(os.fstat(descriptor).st_mode & 0o777))
    write_atomically(path, b"new")
    assert seen == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    os.chown(path, 1234, 2345)
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_without_its_group_a_file_has_no_group_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would hold for another group. The owner is then whoever writes."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    path.chmod(0o664)
    seen = path.stat()
    other = os.stat_result([*seen[:4], seen.st_uid + 1, seen.st_gid + 1, *seen[6:]])

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    look = Path.stat
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda self, **options: other if self == path else look(self, **options))
        write_atomically(path, b"new")
    assert mode(path) == 0o604


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    hidden_neighbour(tmp_path / "file", f"{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("length", [1, 240, 249, 255])
def test_names_of_any_length_can_be_written(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * length)
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"
    for ending in ("lock", "checkpoints", "lesson.new", "4194304.tmp"):
        assert len(hidden_neighbour(path, ending).name) <= 255
        assert hidden_neighbour(path, ending) != hidden_neighbour(path.with_name("m" * length), ending)


@pytest.mark.parametrize("name", ["my.model", "n" * 250])
def test_only_own_temporary_files_are_removed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    own = hidden_neighbour(path, "123.tmp")
    others = [
        *(hidden_neighbour(tmp_path / other, "123.tmp") for other in ("my.model.v2", "my.model.7", "y.model")),
        tmp_path / ".my.model.tmp",
        tmp_path / "my.model.123.tmp",
    ]
    for file in (own, *others):
        file.touch()
    remove_temporary_files(path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
    remove_temporary_files(tmp_path / "absent" / "my.model")


def test_the_state_of_a_file_changes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert file_state(path) is None
    write_atomically(path, b"one")
    first = file_state(path)
    assert first == file_state(path)
    write_atomically(path, b"two")
    assert file_state(path) != first


def _umask() -> int:
    os.umask(current := os.umask(0))
    return current
