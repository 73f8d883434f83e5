"""Expanding files, folders and patterns."""

from __future__ import annotations

from pathlib import Path

import pytest

from clom.data.finding import find_files, linked


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.jpg", "in/c.png", "in/deep/d.png", "in/.hidden.png", "in/.git/e.png", "in/Thumbs.db"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("nothing").mkdir()
    Path("odd [1].png").touch()


def found(*places: str) -> list[str]:
    return [path.as_posix() for path in find_files(places)[0]]


def test_files_folders_and_patterns() -> None:
    assert found("b.jpg", "a.png") == ["b.jpg", "a.png"]
    assert found("in") == ["in/c.png", "in/deep/d.png"]
    assert found("*.png") == ["a.png", "odd [1].png"]
    assert found("**/*.png") == ["a.png", "in/c.png", "in/deep/d.png", "odd [1].png"]
    assert found("i?") == ["in/c.png", "in/deep/d.png"]


def test_no_duplicates() -> None:
    assert found("a.png", "*.png", "a.png") == ["a.png", "odd [1].png"]


def test_an_existing_name_with_pattern_characters_is_a_file() -> None:
    assert found("odd [1].png") == ["odd [1].png"]


def test_an_explicit_hidden_file_is_included() -> None:
    assert found("in/.hidden.png") == ["in/.hidden.png"]


def test_places_without_files_are_reported() -> None:
    files, skipped = find_files(["a.png", "absent.png", "*.tif", "nothing"])
    assert len(files) == 1
    assert [(file.path.name, file.reason) for file in skipped] == [
        ("absent.png", "there is no such file"),
        ("*.tif", "no file matches"),
        ("nothing", "the folder contains no files"),
    ]


def test_links_in_folders_to_files_outside(tmp_path: Path) -> None:
    """A file that was named itself is read wherever it is."""
    folder, secret = tmp_path / "photos", tmp_path / "secret.png"
    folder.mkdir()
    secret.touch()
    (folder / "own.png").touch()
    (folder / "link.png").symlink_to(secret)
    everything, skipped = find_files([str(folder)])
    assert (len(everything), skipped) == (2, [])
    assert linked(everything, [str(folder)]) == [folder / "link.png"]
    found, skipped = find_files([str(folder)], links=False)
    assert found == [folder / "own.png"]
    assert [(file.path.name, "link" in file.reason) for file in skipped] == [("link.png", True)]
    named = str(folder / "link.png")
    assert find_files([named], links=False) == ([folder / "link.png"], [])
    assert linked([folder / "link.png"], [named]) == []
