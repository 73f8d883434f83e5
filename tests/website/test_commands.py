"""The page of the command line."""

from __future__ import annotations

from clom.cli import COMMANDS, make_app
from website.commands import commands_page


def test_every_command_and_every_option_is_there() -> None:
    page, app = commands_page(), make_app()
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert list(sections) == list(COMMANDS)
    for name, text in sections.items():
        assert f"clom {name}" in text
        for argument in app[name].assemble_argument_collection():
            assert argument.names[0] in text, f"{argument.names[0]} of {name}"
