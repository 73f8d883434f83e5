"""The page of the command line, from the program itself."""

from __future__ import annotations

from clom.cli import COMMANDS, make_app


def commands_page() -> str:
    app = make_app()
    parts = [
        "# Command line\n",
        "Generated from the program. Every command accepts `--plugin FILE.py` or `--plugin MODULE`, repeatable, to "
        "load your own methods, networks, data sets or scores; `clom --version` prints the version.\n",
    ]
    for name in COMMANDS:
        parts.append(app[name].generate_docs(heading_level=2, usage_name=f"clom {name}"))
    return "\n".join(parts)
