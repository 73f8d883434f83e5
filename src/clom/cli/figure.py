"""`clom figure`: the paper's figures from the ledger, and figures of finished runs.

Tested by tests/reporting/figures/test_across_runs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from clom.cli.console import Console
from clom.cli.options import DataFolder
from clom.errors import UserError

FIGURES = Literal["forgetting", "til-curves", "cil-curves", "augmentations", "capacity", "auc-grid", "scores"]


def figure_command(
    name: FIGURES,
    /,
    *runs: Path,
    out: Path = Path("results/figures"),
    ledger: Path = Path("results/ledger.jsonl"),
    budget: str = "cpu",
    experiment: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    data: DataFolder | None = None,
) -> None:
    """Draw a figure as SVG and PNG: from the ledger (forgetting, til-curves, cil-curves), from finished runs (capacity,
    auc-grid, scores) or from an image (augmentations).

    Parameters
    ----------
    name
        Which figure.
    runs
        Folders of finished runs, for capacity, auc-grid and scores.
    out
        Output folder.
    ledger
        The ledger file.
    budget
        Use only runs with this budget: smoke, cpu or paper.
    experiment
        Only this experiment (repeatable). For augmentations: the experiment whose first test image is shown.
    data
        Folder with the data sets; by default CLOM_DATA or the download cache.
    """
    from clom.experiments.ledger import read
    from clom.reporting.figures.across_runs import draw_from_ledger
    from clom.reporting.figures.run_details import OF_RUNS, draw_augmentations
    from clom.reporting.paper.tables import check_experiments, check_rows

    if (name in OF_RUNS) != bool(runs):
        needs = "needs the folder of a finished run" if name in OF_RUNS else "is not drawn from runs' folders"
        raise UserError(f"'{name}' {needs}: clom figure {name} {'runs/...' if name in OF_RUNS else ''}".rstrip())
    if name == "augmentations":
        paths = draw_augmentations(out, experiment[0] if experiment else None, data)
    elif name == "forgetting" or name == "til-curves" or name == "cil-curves":
        rows = read(ledger)
        check_rows(rows, ledger)
        check_experiments(experiment, rows)
        paths = draw_from_ledger(name, rows, out, budget, experiment)
    else:
        paths = [path for run in runs for path in OF_RUNS[name](run, out)]
    for path in paths:
        Console().print(str(path), highlight=False, soft_wrap=True)
