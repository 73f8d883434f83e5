"""`clom new`: commented templates for user-defined components."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Literal

from clom.cli.console import Console
from clom.errors import UserError, shorten

Kind = Literal["method", "experiment", "score", "network"]
NEXT = {
    "method": ["python {file}", "clom run digits-5t --budget smoke --method {file}:{class_name}"],
    "experiment": ["clom run {file} --budget smoke"],
    "score": ["python {file}", "clom scores RUN --score {file}:{class_name}"],
    "network": ["python {file}", "clom run digits-5t --budget smoke --plugin {file} --set net.kind={name}"],
}
"""Commands to run next: the check, if there is one, then an example of use."""


def new_command(kind: Kind, name: str, /, *, out: Path | None = None) -> None:
    """Create a commented template for your own method, experiment, score or network.

    The file works unchanged: adapt it step by step and re-run its check as you go.

    Parameters
    ----------
    kind
        method, experiment, score or network.
    name
        Its name, for example my-method: lower-case letters, digits, dashes and underscores.
    out
        The file to write; by default named after `name`, in the current folder.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise UserError(
            f"'{shorten(name)}' is not a valid name: use lower-case letters, digits, dashes and underscores, "
            f"such as my-{kind}."
        )
    ending = ".yaml" if kind == "experiment" else ".py"
    path = out or Path((name if kind == "experiment" else name.replace("-", "_")) + ending)
    if path.suffix != ending:
        raise UserError(f"{path} should end in {ending}, as every {kind} does.")
    class_name = "".join(part.capitalize() for part in re.split("[_-]", name))
    write_new(path, template(kind, ending, name, class_name, path))
    console = Console()
    console.print(f"Wrote {path}. It works unchanged:", highlight=False, soft_wrap=True, markup=False)
    for command in NEXT[kind]:
        text = "    " + command.format(file=shlex.quote(str(path)), name=name, class_name=class_name)
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def template(kind: Kind, ending: str, name: str, class_name: str, path: Path) -> str:
    """The template of a kind, with its placeholder names replaced."""
    text = (resources.files("clom.cli") / "templates" / f"{kind}{ending}").read_text(encoding="utf-8")
    for placeholder, value in {
        f"my_{kind}{ending}": path.name,
        f"my-{kind}{ending}": path.name,
        f"my-{kind}": path.stem if kind == "experiment" else name,  # an experiment is named after its file
        f"My{kind.capitalize()}": class_name,
    }.items():
        text = text.replace(placeholder, value)
    return text


def write_new(path: Path, text: str) -> None:
    """Write a new file; never overwrite an existing one."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} already exists and was not changed. Choose another name, or use --out FILE.") from None
    except FileNotFoundError:
        raise UserError(f"Cannot write {path.name}: there is no folder {path.parent}.") from None
