"""`clom report`: an HTML report of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.options import DataFolder, Device, RunFolder

if TYPE_CHECKING:
    from clom.reporting.report.page import Written


def report_command(
    run: RunFolder,
    /,
    *runs: RunFolder,
    out: Path | None = None,
    data: DataFolder | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Write a self-contained HTML report of finished runs.

    Parameters
    ----------
    run
        Folder of a finished run; several runs are compared.
    out
        The HTML file; by default report.html in the run's folder, or in the current folder for several runs.
    data
        Folder with the data sets, for the example images; by default CLOM_DATA or the download cache.
    threads
        Number of CPU threads; by default one per core.
    """
    from clom import machine
    from clom.reporting.report.page import write_report

    machine.tune_process(threads)
    target = out or (Path() if runs else run) / "report.html"
    show_written(Console(), write_report([run, *runs], target, data, machine.choose_device(device)))


def show_written(console: Console, written: Written) -> None:
    console.print(f"Report: {written.path} ({written.n_bytes / 1000:.0f} kB)", highlight=False, soft_wrap=True)
    if written.without_images:
        console.print(
            f"The report has no example images of {', '.join(written.without_images)}: the data set was not found. "
            "Use --data to name its folder.",
            highlight=False,
            soft_wrap=True,
        )
