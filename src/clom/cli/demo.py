"""`clom demo`: the main job on embedded data.

Tested by tests/cli/test_report.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from clom.cli.options import Device


def demo_command(
    *,
    seed: int = 0,
    out: Path | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Learn scikit-learn's digits as five tasks of two, in about two minutes, without any download.

    Parameters
    ----------
    seed
        Decides everything random.
    out
        Folder for this run; by default runs/digits-5t-clom-cpu-s<seed>.
    threads
        Threads to compute with; by default one per core.
    """
    from clom.cli.report import show_written
    from clom.cli.run import show_run
    from clom.experiments.config import resolve

    console = Console()
    console.print(
        "Ten digits, two at a time. After each pair the training images are gone; the network keeps what it learned.",
        highlight=False,
        soft_wrap=True,
    )
    config = resolve("digits-5t", "clom", "cpu", seed)
    folder = out or Path("runs") / config.run_name
    show_run(console, config, folder, None, threads, device=device)
    from clom.reporting.report.page import write_report  # only now: the picture has loaded most of what it needs

    show_written(console, write_report([folder], folder / "report.html"))
