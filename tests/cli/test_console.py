"""Whatever a name contains, the console shows it and does not obey it."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

import clom
from clom.cli.console import Console
from clom.cli.display import LessonDisplay
from clom.cli.learn import say
from clom.learning.progress import Progress

NASTY = ["[/b] stuff", "[bold]", "[link=http://x]y[/link]", ":smile:", "\x1b[2J\x1b]0;title\a", "1.5 'text' /path"]
SHOWN = [*NASTY[:4], r"\x1b[2J\x1b]0;title\x07", NASTY[5]]


def _print(console: Console, text: str) -> None:
    console.print(text)


def _table(console: Console, text: str) -> None:
    table = Table(text, title=text)
    table.add_row(text)
    console.print(table)


def _progress(console: Console, text: str) -> None:
    with LessonDisplay(console, text) as display:
        display.step(Progress(0, "features", 1, 2))


@pytest.mark.parametrize("show", [_print, say, _table, _progress])
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(("text", "shown"), list(zip(NASTY, SHOWN, strict=True)))
def test_text_is_shown_as_it_is(show: Callable[[Console, str], None], terminal: bool, text: str, shown: str) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, color_system=None, width=200)
    if show is _progress and not terminal:
        return  # shows lines only every ten seconds
    show(console, text)
    assert shown in output.getvalue()
    assert "\x1b[2J" not in output.getvalue()
    assert "\x1b]" not in output.getvalue()


@pytest.mark.parametrize("text", NASTY)
def test_numbers_and_paths_within_text_are_not_coloured(text: str) -> None:
    output = io.StringIO()
    Console(file=output, force_terminal=True, color_system="truecolor", width=200).print(text)
    assert "\x1b" not in output.getvalue()


def test_no_other_console_is_used() -> None:
    """Nor the functions of rich that print on a console of their own."""
    source = Path(clom.__file__).parent
    importing = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.console")
    }
    assert importing == {"cli/console.py"}
