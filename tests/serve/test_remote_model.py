"""Many files, asked of a server in portions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clom.data.folders import Skipped
from clom.photos.predict import Answer
from clom.serve.client import Client, Refused
from clom.serve.remote_model import remote_answers

ANSWER = {
    "guesses": [{"class_name": "red", "confidence": 0.9, "task": "warm"}],
    "unknown": False,
    "familiarity": 0.5,
    "belonging": {"warm": 1.0},
}


class Server(Client):
    """Answers every file but those called `bad`, in requests of at most three files and 100 bytes."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked: list[list[str]] = []

    def model(self) -> dict[str, Any]:
        return {"server": {"most_at_once": 3, "most_bytes_at_once": 200}}

    def predict(
        self, pictures: Sequence[Path], task: str | None = None, top: int = 3, false_rejection: float = 0.05
    ) -> dict[str, Any]:
        self.asked.append([path.name for path in pictures])
        told = [{"error": "no image"} if path.name.startswith("bad") else ANSWER for path in pictures]
        if all("error" in answer for answer in told):
            raise Refused(422, "nothing readable", [{"file": path.name, "reason": "no image"} for path in pictures])
        return {"answers": told}


def asked(folder: Path, **sizes: int) -> tuple[list[list[str]], list[str], list[str]]:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    server, skipped = Server(), list[Skipped]()
    found: list[tuple[Path, Answer]] = []
    for part in remote_answers(server, [folder / name for name in sizes], skipped, None, 3, 0.05):
        found += part
    assert all(answer.best.class_name == "red" for _, answer in found)
    return server.asked, [path.name for path, _ in found], [file.path.name for file in skipped]


def test_portions_are_limited_in_files_and_bytes(tmp_path: Path) -> None:
    requests, found, skipped = asked(tmp_path, a=1, b=1, c=1, d=60, e=60, f=500, g=1)
    assert requests == [["a", "b", "c"], ["d"], ["e"], ["f"], ["g"]]
    assert found == list("abcdefg")
    assert skipped == []


def test_what_is_unreadable_is_skipped(tmp_path: Path) -> None:
    assert asked(tmp_path, a=1, bad1=1, b=1, bad2=1)[1:] == (["a", "b"], ["bad1", "bad2"])


def test_other_refusals_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> dict[str, Any]:
        raise Refused(401, "no token")

    monkeypatch.setattr(Server, "predict", refuse)
    with pytest.raises(Refused, match="no token"):
        asked(tmp_path, a=1)
