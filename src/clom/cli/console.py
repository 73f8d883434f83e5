"""The console of all commands: text from outside is shown as it is, and never obeyed.

Tested by tests/cli/test_console.py.
"""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console as RichConsole
from rich.text import Text

from clom.untrusted_text import printable


class Console(RichConsole):
    """Text is neither markup nor emoji codes nor highlighted, and control characters are shown as escapes. Styles are
    set by arguments (`style="bold"`), never within the text."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(stderr=stderr, file=file, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **(options | {"markup": False, "emoji": False}))
