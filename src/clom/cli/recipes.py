"""`clom recipes`: the built-in recipes, written from recorded searches.

Tested by tests/experiments/tuning/test_adoption.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clom.cli.console import Console
from clom.cli.options import DataFolder
from clom.errors import unknown


def recipes_command(
    *,
    searches: Path = Path("results/searches"),
    out: Path | None = None,
    refit: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    data: DataFolder | None = None,
) -> None:
    """Write the recipes that searches found, which runs at the searches' budget use from then on.

    Parameters
    ----------
    searches
        Folder with the records of `clom tune --record`.
    out
        Folder for the recipes; by default that of the built-in ones.
    refit
        A search whose number of epochs is to be computed again, because training costs more or less than before: for
        example cifar10-5t-icarl (repeatable). What the search chose stays as it is.
    data
        Folder with the data sets, for `--refit`; by default CLOM_DATA or the download cache.
    """
    from clom.experiments.tuning.adoption import adopt
    from clom.experiments.tuning.refit import refit as fit_again

    known = sorted(path.stem for path in searches.glob("*.json"))
    for name in refit:
        if name not in known:
            raise unknown("search", name, known)
    for name in refit:
        fit_again(searches / f"{name}.json", data)
        Console().print(f"Computed again: {name}", highlight=False)
    written = adopt(searches, out)
    Console().print(f"Written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
