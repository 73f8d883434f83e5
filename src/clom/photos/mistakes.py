"""Which classes a model confuses, on photos whose class is known."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from clom.data.images import resized

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Confusion:
    """Photos of one class that were answered as another, or rejected."""

    truth: str
    answer: str | None
    """None for unknown."""
    photos: tuple[int, ...]
    """The rows of these photos."""


@dataclass(frozen=True)
class Mistakes:
    """The answers to photos whose class is known."""

    classes: tuple[str, ...]
    """The classes of the photos, in order, then other classes that were answered."""
    counts: tuple[tuple[int, ...], ...]
    """Row: class of the photo, column: answer, both as `classes`; the last column is unknown."""
    pairs: tuple[Confusion, ...]
    """Every kind of mistake, the most frequent first."""

    @property
    def n_photos(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def n_mistakes(self) -> int:
        return sum(len(pair.photos) for pair in self.pairs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_mistakes(truths: Sequence[str], answers: Sequence[str | None]) -> Mistakes:
    """Compare the class of each photo with its answer, None for unknown."""
    named = (answer for answer in answers if answer is not None)
    classes = tuple(dict.fromkeys((*truths, *sorted(named))))
    counts = Counter(zip(truths, answers, strict=True))
    columns: tuple[str | None, ...] = (*classes, None)
    table = tuple(tuple(counts[truth, answer] for answer in columns) for truth in classes)
    wrong = {pair: count for pair, count in counts.items() if pair[0] != pair[1]}
    order = sorted(wrong, key=lambda pair: -wrong[pair])  # stable: among equals, the order of the photos
    rows = {pair: list[int]() for pair in order}
    for row, pair in enumerate(zip(truths, answers, strict=True)):
        if pair in rows:
            rows[pair].append(row)
    return Mistakes(classes, table, tuple(Confusion(*pair, tuple(rows[pair])) for pair in order))


def thumbnail(pixels: Tensor, side: int = 96) -> str:
    """A photo `[3, height, width]` as a small JPEG in a data URI."""
    small = resized(pixels[None], (3, side, side))[0]
    file = io.BytesIO()
    Image.fromarray(small.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
