"""Predictions of a server, in the form of those of a local model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clom.data.folders import Skipped
from clom.photos.predict import Answer, Guess
from clom.serve.client import Client, Refused

_AT_ONCE = 16
_UNREADABLE = 422


def remote_answers(
    client: Client, files: Sequence[Path], skipped: list[Skipped], task: str | None, top: int, false_rejection: float
) -> Iterator[list[tuple[Path, Answer]]]:
    """Predict in batches; files that the server cannot decode are added to `skipped`."""
    server = client.model()["server"]
    for part in _portions(files, min(_AT_ONCE, server["most_at_once"]), server["most_bytes_at_once"] // 2):
        try:
            answers = client.predict(part, task, top, false_rejection)["answers"]
        except Refused as problem:
            if problem.status != _UNREADABLE or not problem.unreadable:
                raise
            answers = [{"error": file["reason"]} for file in problem.unreadable]
        found = list(zip(part, answers, strict=True))
        skipped += [Skipped(path, answer["error"]) for path, answer in found if "error" in answer]
        yield [(path, _answer(answer)) for path, answer in found if "error" not in answer]


def _answer(told: dict[str, Any]) -> Answer:
    guesses = tuple(Guess(**guess) for guess in told["guesses"])
    return Answer(guesses, told["unknown"], told["familiarity"], told["belonging"])


def _portions(files: Sequence[Path], most: int, most_bytes: int) -> Iterator[list[Path]]:
    part, size = list[Path](), 0
    for path in files:
        length = path.stat().st_size if path.is_file() else 0
        if part and (len(part) == most or size + length > most_bytes):
            yield part
            part, size = [], 0
        part.append(path)
        size += length
    if part:
        yield part
