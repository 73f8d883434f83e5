"""The mistakes of a model as one HTML file: a confusion matrix, and the most confused classes with their photos.

Tested by tests/photos/test_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from clom.errors import UserError
from clom.files import write_atomically
from clom.photos.mistakes import Mistakes

_MOST_PAIRS, _MOST_PHOTOS = 30, 12


def check_page(path: Path) -> None:
    """Raise if the page cannot be written there; call it before the work that it is about."""
    if path.is_dir():
        raise UserError(f"{path} is a folder. Name a file for the mistakes, for example {path / 'mistakes.html'}.")


def write_mistakes(
    path: Path, title: str, mistakes: Mistakes, files: list[str], picture: Callable[[int], str | None]
) -> None:
    """Write the page. `files` are the names of the photos, `picture` gives the data URI of a photo by its row."""
    check_page(path)
    environment = Environment(
        loader=PackageLoader("clom.photos"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    pairs = [
        {
            "truth": pair.truth,
            "answer": pair.answer,
            "count": len(pair.photos),
            "photos": [(files[row], picture(row)) for row in pair.photos[:_MOST_PHOTOS]],
        }
        for pair in mistakes.pairs[:_MOST_PAIRS]
    ]
    matrix = zip(mistakes.classes, mistakes.counts, strict=True)
    text = environment.get_template("mistakes.html.jinja").render(
        title=title,
        mistakes=mistakes,
        rows=[(name, row, place) for place, (name, row) in enumerate(matrix) if any(row)],
        largest=max(map(max, mistakes.counts), default=1) or 1,
        pairs=pairs,
        more_pairs=len(mistakes.pairs) - len(pairs),
    )
    write_atomically(path, text.encode())
