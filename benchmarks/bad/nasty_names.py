"""Names that a terminal, a page or a file system could trip over, given to a lesson in every way that names enter."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from PIL import Image

from benchmarks.bad.cases import Make, Reader
from clom.cli import main
from clom.errors import UserError
from clom.methods.ncm import Ncm, NcmSettings
from clom.nets import AdapterSettings
from clom.storage.model_file import save_model
from clom.untrusted_text import on_one_line

_MODEL, _PHOTOS, _NAME = "my.model", "photos", "name.json"
NAMES = (
    *("[/b] stuff", "[bold]", "[link=http://x]y[/link]", ":smile:", "[", "\\[x]", "{0}", "%s", "<script>", "=1+1"),
    *("\x1b[2J", "\x1b]0;title\a", "a\nb", "a\r\nb", "tab\there", "\0", "\x7f", "\x9b31m", "\u202egpj.exe", "\u2028"),
    *("", " ", ".", "..", "-", "--name", "~", "a/b", "../../etc/passwd", "CON", "'; DROP TABLE", '"', "`id`", "$(id)"),
    *("é", "e\u0301", "猫", "👩‍🔬", "ß" * 120, "x" * 1000, "x" * 1001, "x" * 100_000, "\ud800", "１２", "\ufeff"),
)  # fmt: skip


def is_safe(text: str) -> bool:
    """Whether a terminal shows the text and does nothing else."""
    return on_one_line(text) == text


@cache
def _untaught() -> bytes:
    net = AdapterSettings(weights="random", width=0.03, hidden=8)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / _MODEL, Ncm(net, NcmSettings(), (3, 32, 32)))
        return (Path(folder) / _MODEL).read_bytes()


def _lesson(folder: Path, task: str, names: tuple[str, str], picture: str) -> None:
    """A folder of photos with these names; a name that no file can have is given another way or not at all."""
    (folder / _MODEL).write_bytes(_untaught())
    (folder / _NAME).write_text(json.dumps(task))
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            place = folder / _PHOTOS / name
            if place.parent != folder / _PHOTOS or name in ("", ".", ".."):
                continue
            place.mkdir(parents=True, exist_ok=True)
            for number in range(5):
                image = Image.new("RGB", (32, 32), (40 * number, len(name) % 256, 90))
                image.save(place / f"{number}.png")
            with contextlib.suppress(OSError, ValueError):
                shutil.copy(place / "0.png", place / picture)


def _as(task: str = "task", class_name: str = "cat", picture: str = "x.png") -> Make:
    return lambda folder, _: _lesson(folder, task, (class_name, "dog"), picture)


def _special() -> Mapping[str, Make]:
    return {
        **{f"task {name!r:.40}": _as(task=name) for name in NAMES},
        **{f"class {name!r:.40}": _as(class_name=name) for name in NAMES},
        **{f"picture {name!r:.40}": _as(picture=f"{name}.png") for name in NAMES},
    }


def _chance(folder: Path, randomness: Random) -> None:
    def name() -> str:
        parts = randomness.choices(NAMES, k=randomness.choice((1, 2)))
        return "".join(parts)[:200] + randomness.choice(("", "x", chr(randomness.randrange(0xD000))))

    _lesson(folder, name(), (name(), name()), f"{name()}.png")


def _learn(folder: Path) -> None:
    """Teach, look at, and ask the model, with the commands that people use."""
    model, photos = str(folder / _MODEL), str(folder / _PHOTOS)
    task = json.loads((folder / _NAME).read_text())
    named = [f"--name={task}"] if task else []
    if refusal := _said(["learn", model, photos, *named, "--threads=1"], folder):
        raise UserError(refusal)
    for words in (["inspect", model], ["predict", model, photos], ["forget", model, task or _PHOTOS]):
        _said([*words, "--threads=1"] if words[0] == "predict" else words, folder)


def _said(words: list[str], folder: Path) -> str:
    """The message of a command that refused; raises if a command ended otherwise, or said what a terminal obeys."""
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    lines = output.getvalue().split("\n")
    assert code in (0, 2), f"clom {words[0]} ended with {code}"
    assert all(is_safe(line) for line in lines), f"clom {words[0]} printed control characters"
    return output.getvalue()[:2000] if code else ""


def readers() -> list[Reader]:
    return [Reader("names", _special, _chance, _learn)]
