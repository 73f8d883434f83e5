"""Safetensors files with a header: round trips, and detection of damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clom.errors import UserError
from clom.storage.tensors import checksum, read_tensors, to_bytes

TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),  # not contiguous
    "labels": torch.tensor([3, 1]),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}
HEADER = {"format": "test", "note": "ü"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(to_bytes(TENSORS, HEADER))
    return tmp_path / "file"


def test_round_trip(path: Path) -> None:
    tensors, header = read_tensors(path)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_a_changed_value_is_detected(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="checksum does not match"):
        read_tensors(path)


@pytest.mark.parametrize(
    "changed",
    [
        {**TENSORS, "labels": TENSORS["labels"] + 1},
        {**TENSORS, "empty": torch.zeros(4, 0)},
        {**TENSORS, "mask": TENSORS["mask"].to(torch.uint8)},
        {("other" if name == "mask" else name): value for name, value in TENSORS.items()},
    ],
    ids=["value", "shape", "type", "name"],
)
def test_the_checksum_covers_everything(changed: dict[str, torch.Tensor]) -> None:
    assert checksum(changed, HEADER) != checksum(TENSORS, HEADER)
    assert checksum(TENSORS, {}) != checksum(TENSORS, HEADER)
    assert checksum(dict(reversed(TENSORS.items())), HEADER) == checksum(TENSORS, HEADER)


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "file", {"format": "other"})
    assert read_tensors(tmp_path / "file")[1] == {"format": "other"}


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        read_tensors(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UserError, match="cannot be read as a model file"):
        read_tensors(tmp_path / "text")


def test_equal_contents_are_equal_bytes() -> None:
    """Also in another order, and however a hash map orders the header."""
    files = {to_bytes(TENSORS, HEADER | {str(number): "x" for number in range(5)}) for _ in range(20)}
    files.add(to_bytes(dict(reversed(TENSORS.items())), {str(number): "x" for number in range(5)} | HEADER))
    assert len(files) == 1
    (content,) = files
    assert int.from_bytes(content[:8], "little") % 8 == 0  # tensors stay aligned


def test_a_file_that_is_truncated_after_it_was_read(path: Path) -> None:
    """Tensors do not depend on the file any more: with a memory-mapped one, this process would be killed here."""
    path.write_bytes(to_bytes({"weight": torch.ones(10**6)}, {}))
    tensors, _ = read_tensors(path)
    os.truncate(path, 0)
    assert float(tensors["weight"].sum()) == 1e6
