"""`clom new`: a commented starting file for something of one's own."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Literal

from rich.console import Console

from clom.errors import UserError, shorten

Kind = Literal["method", "score"]
NEXT = {
    "method": "clom run digits-5t --budget smoke --method {file}:{class_name}",
    "score": "clom scores RUN --score {file}:{class_name}",
}


def new_command(kind: Kind, name: str, /, *, out: Path | None = None) -> None:
    """Write a commented starting file for a method or a score of your own.

    The file works as it is: change it step by step, and check it whenever you like.

    Parameters
    ----------
    kind
        What it is to be: method or score.
    name
        Its name, for example my-method: lower-case letters, digits and dashes.
    out
        The file to write; by default the name with the right ending, here.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UserError(f"'{shorten(name)}' is no name: use lower-case letters, digits and dashes, such as my-{kind}.")
    path = out or Path(name.replace("-", "_") + ".py")
    if path.suffix != ".py":
        raise UserError(f"{path} should end in .py: what is written is Python.")
    class_name = "".join(part.capitalize() for part in name.split("-"))
    write_new(path, template(kind, name, class_name, path.name))
    console = Console()
    file = shlex.quote(str(path))
    for text in (
        f"Wrote {path}. Check it:",
        f"    python {file}",
        "Then use it:",
        f"    {NEXT[kind].format(file=file, class_name=class_name)}",
    ):
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def template(kind: Kind, name: str, class_name: str, file: str) -> str:
    """The starting file of a kind, under these names."""
    text = (resources.files("clom.cli") / "templates" / f"{kind}.py").read_text(encoding="utf-8")
    for placeholder, value in {
        f"my_{kind}.py": file,
        f"my-{kind}": name,
        f"My{kind.capitalize()}": class_name,
    }.items():
        text = text.replace(placeholder, value)
    return text


def write_new(path: Path, text: str) -> None:
    """A file that was there is somebody's work: it is never overwritten."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already and is left as it is. Choose another name, or --out FILE.") from None
    except FileNotFoundError:
        raise UserError(f"There is no folder {path.parent} to write {path.name} into.") from None
