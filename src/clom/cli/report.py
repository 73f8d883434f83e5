"""`clom report`: finished runs as a page to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

if TYPE_CHECKING:
    from clom.reporting.report.page import Written


def report_command(
    run: Path,
    /,
    *runs: Path,
    out: Path | None = None,
    data: Path | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> None:
    """Write finished runs as one HTML page that needs no net and no other file.

    Parameters
    ----------
    run
        Folder of a finished run; more may follow, and are compared.
    out
        The page; by default report.html in the run's folder, or here if there are several runs.
    data
        Folder with the data sets, for the example images; otherwise CLOM_DATA or the download cache.
    threads
        Threads to compute with; by default one per core.
    """
    from clom import machine
    from clom.reporting.report.page import write_report

    machine.tune_process(threads)
    target = out or (Path() if runs else run) / "report.html"
    show_written(Console(), write_report([run, *runs], target, data))


def show_written(console: Console, written: Written) -> None:
    console.print(f"Report: {written.path} ({written.n_bytes / 1000:.0f} kB)", highlight=False, soft_wrap=True)
    if written.without_images:
        console.print(
            f"It shows no example images of {', '.join(written.without_images)}: the data are not on this machine. "
            "--data names their folder.",
            highlight=False,
            soft_wrap=True,
        )
