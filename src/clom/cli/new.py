"""`clom new`: a commented starting file for something of one's own."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Literal

from rich.console import Console

from clom.errors import UserError, shorten

Kind = Literal["method", "experiment", "score", "network"]
NEXT = {
    "method": ["python {file}", "clom run digits-5t --budget smoke --method {file}:{class_name}"],
    "experiment": ["clom run {file} --budget smoke"],
    "score": ["python {file}", "clom scores RUN --score {file}:{class_name}"],
    "network": ["python {file}", "clom run digits-5t --budget smoke --plugin {file} --set net.kind={name}"],
}
"""What to type next: the check, where there is one, then how to use it."""


def new_command(kind: Kind, name: str, /, *, out: Path | None = None) -> None:
    """Write a commented starting file for a method, an experiment, a score or a network of your own.

    The file works as it is: change it step by step, and check it whenever you like.

    Parameters
    ----------
    kind
        What it is to be: method, experiment, score or network.
    name
        Its name, for example my-method: lower-case letters, digits, dashes and underscores.
    out
        The file to write, by default called after the name, in this folder.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise UserError(
            f"'{shorten(name)}' is no name: use lower-case letters, digits, dashes and underscores, such as my-{kind}."
        )
    ending = ".yaml" if kind == "experiment" else ".py"
    path = out or Path((name if kind == "experiment" else name.replace("-", "_")) + ending)
    if path.suffix != ending:
        raise UserError(f"{path} should end in {ending}, as every {kind} does.")
    class_name = "".join(part.capitalize() for part in re.split("[_-]", name))
    write_new(path, template(kind, ending, name, class_name, path))
    console = Console()
    console.print(f"Wrote {path}. It works as it is:", highlight=False, soft_wrap=True, markup=False)
    for command in NEXT[kind]:
        text = "    " + command.format(file=shlex.quote(str(path)), name=name, class_name=class_name)
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def template(kind: Kind, ending: str, name: str, class_name: str, path: Path) -> str:
    """The starting file of a kind, with its own names instead of those of the example."""
    text = (resources.files("clom.cli") / "templates" / f"{kind}{ending}").read_text(encoding="utf-8")
    for placeholder, value in {
        f"my_{kind}{ending}": path.name,
        f"my-{kind}{ending}": path.name,
        f"my-{kind}": path.stem if kind == "experiment" else name,  # an experiment is called after its file
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
