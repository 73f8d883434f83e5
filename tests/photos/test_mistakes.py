"""Confusions on labelled photos, and the page that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.photos.mistakes import find_mistakes, thumbnail
from clom.photos.mistakes_page import write_mistakes

TRUTHS = ["cat", "cat", "cat", "dog", "dog", "<b>", "dog"]
ANSWERS = ["cat", "dog", "dog", None, "emu", "<b>", "dog"]


def test_every_answer_is_counted() -> None:
    found = find_mistakes(TRUTHS, ANSWERS)
    assert found.classes == ("cat", "dog", "<b>", "emu")
    assert found.counts == ((1, 2, 0, 0, 0), (0, 1, 0, 1, 1), (0, 0, 1, 0, 0), (0, 0, 0, 0, 0))
    assert [(pair.truth, pair.answer, pair.photos) for pair in found.pairs] == [
        ("cat", "dog", (1, 2)),
        ("dog", None, (3,)),
        ("dog", "emu", (4,)),
    ]
    assert (found.n_photos, found.n_mistakes) == (7, 4)


def test_no_photos() -> None:
    found = find_mistakes([], [])
    assert (found.counts, found.n_photos, found.n_mistakes) == ((), 0, 0)


def test_the_page_shows_them_and_escapes_what_people_named(tmp_path: Path) -> None:
    files = [f"<i>{row}.jpg" for row in range(7)]
    picture = thumbnail(torch.full((3, 20, 20), 200, dtype=torch.uint8))
    path = tmp_path / "out" / "mistakes.html"
    write_mistakes(path, "A & B", find_mistakes(TRUTHS, ANSWERS), files, lambda row: picture if row != 3 else None)
    text = path.read_text()
    assert "<title>A &amp; B</title>" in text
    assert "7 photos whose class is known, 4 answered wrong or rejected" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert text.count("data:image/jpeg;base64,") == 3
    headings = [" ".join(found.split()) for found in re.findall(r"<h3>(.*?)</h3>", text, re.S)]
    assert headings == ["cat, taken for dog: 2", "dog, rejected as unknown: 1", "dog, taken for emu: 1"]
    assert len(re.findall(r"<tr><th scope=.row.>", text)) == 3, "no row for a class of which there is no photo"
    assert "http" not in text
    assert "<script" not in text


def test_everything_right(tmp_path: Path) -> None:
    write_mistakes(tmp_path / "m.html", "t", find_mistakes(["a"], ["a"]), ["1"], lambda row: None)
    assert "Every photo was answered right." in (tmp_path / "m.html").read_text()


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        write_mistakes(tmp_path, "t", find_mistakes(["a"], ["a"]), ["1"], lambda row: None)
