"""`clom recipes`: the built-in recipes, written from recorded searches.

Tested by tests/experiments/tuning/test_adoption.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console


def recipes_command(*, searches: Path = Path("results/searches"), out: Path | None = None) -> None:
    """Write the recipes that searches found, which runs at the searches' budget use from then on.

    Parameters
    ----------
    searches
        Folder with the records of `clom tune --record`.
    out
        Folder for the recipes; by default that of the built-in ones.
    """
    from clom.experiments.tuning.adoption import adopt

    written = adopt(searches, out)
    Console().print(f"Written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
