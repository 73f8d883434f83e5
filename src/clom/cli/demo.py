"""`clom demo`: continual learning on bundled data.

Tested by tests/cli/test_report.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.options import Device

Budget = Literal["smoke", "cpu"]


def demo_command(
    *,
    budget: Budget = "cpu",
    seed: int = 0,
    out: Path | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Learn scikit-learn's digits as five tasks of two classes, in about two minutes, without downloads.

    Parameters
    ----------
    budget
        cpu (about two minutes), or smoke (seconds): the same with so little training that it only shows the way.
    seed
        Random seed.
    out
        Folder for this run; by default `runs/digits-5t-clom-<budget>-s<seed>`.
    threads
        Number of CPU threads; by default one per core.
    """
    from clom.cli.report import show_written
    from clom.cli.run import show_run
    from clom.experiments.config import resolve

    console = Console()
    console.print(
        "Ten digits, two at a time. After each pair the training images are discarded; the network forgets nothing.",
        highlight=False,
        soft_wrap=True,
    )
    config = resolve("digits-5t", "clom", budget, seed)
    folder = out or Path("runs") / config.run_name
    show_run(console, config, folder, None, threads, device=device)
    from clom.reporting.report.page import write_report  # late: drawing the run has imported most of it already

    show_written(console, write_report([folder], folder / "report.html"))
