"""`clom scores`: OOD scores on a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.progress import Progress
from rich.table import Table

from clom.cli.console import Console
from clom.cli.options import DataFolder, Device, RunFolder
from clom.ood.registry import PREDICTORS
from clom.ood.rejection import FALSE_REJECTION

if TYPE_CHECKING:
    from clom.experiments.analysis.ood_scores import ScoreResult, ScoresReport


def scores_command(
    run: RunFolder,
    *,
    data: DataFolder | None = None,
    external: str | None = None,
    score: Annotated[tuple[str, ...], Parameter(name="--score", negative=())] = (),
    predictor: Annotated[tuple[str, ...], Parameter(name="--predictor", negative=())] = (),
    rejection: Annotated[float, Parameter(validator=Number(gte=0, lt=1))] = FALSE_REJECTION,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
) -> None:
    """Compare how well OOD scores separate the tasks of a finished run from each other and from other data sets.

    Nothing is trained. Network outputs are cached in the run's folder, so a second call is fast.

    Parameters
    ----------
    run
        Folder of a finished run.
    data
        Folder with the data sets; by default CLOM_DATA or the download cache.
    external
        External OOD data sets, for example kmnist,notmnist; by default those of the experiment.
    score
        Compare only this score, for example msp, or your own: my_file.py:Mine or package.module:Mine (repeatable).
        `clom list scores` shows all names.
    predictor
        Add your own task predictor: my_file.py:Mine or package.module:Mine (repeatable).
    rejection
        Accepted fraction of in-distribution images rejected; sets the threshold on validation images.
    threads
        Number of CPU threads; by default one per core.
    """
    from clom import machine
    from clom.experiments.analysis.ood_scores import score_run

    console = Console()
    machine.tune_process(threads)
    names = None if external is None else [name.strip() for name in external.split(",") if name.strip()]
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("running the task models", total=None)
        report = score_run(
            run,
            data,
            names,
            rejection,
            lambda done, total: bar.update(line, completed=done, total=total),
            score,
            predictor,
            machine.choose_device(device),
        )
    tables = [tasks_table(report), external_table(report)]
    for table in tables + ([predictors_table(report)] if report.predictors else []):
        table.padding = (0, 1 if console.width >= 100 else 0)
        console.print(table)
    for text in closing_lines(report):
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"All numbers: {run / 'scores.json'}", highlight=False, soft_wrap=True)


Figure = Callable[["ScoreResult"], float]
Column = tuple[str, Figure, Callable[[list[float]], float] | None]
"""Title, value of a row, and how the best value is chosen (if at all)."""


def tasks_table(report: ScoresReport) -> Table:
    """How well each score separates the learned tasks."""

    def of_predictor(name: str, figure: str) -> Figure:
        return lambda score: float(getattr(score.rules[name], figure))

    columns: list[Column] = [
        ("AUC\nvalid.", lambda score: score.auc_validation, max),
        ("AUC", lambda score: score.auc, max),
        ("FPR95", lambda score: score.fpr95, min),
        ("AUPR", lambda score: score.aupr, max),
    ]
    for name in next(iter(report.scores.values())).rules:
        title = (PREDICTORS.get(name).title or name).replace(" ", "\n")
        columns.append((f"TaskDR\n{title}", of_predictor(name, "task_detection"), max))
        columns.append((f"CIL\n{title}", of_predictor(name, "cil"), max))
    return _table(f"{report.experiment}, {report.method}: tasks against one another, in percent", report, columns)


def external_table(report: ScoresReport) -> Table:
    """How well each score separates the learned tasks from external data sets."""

    def auc_of(name: str) -> Figure:
        return lambda score: score.external_auc[name]

    def rejected_of(name: str) -> Figure:
        return lambda score: score.rejection.external[name]

    columns: list[Column] = [("own\ntests\nrejected", lambda score: score.rejection.own, None)]
    for name in report.external:
        title = name.replace("-", "-\n")
        columns.append((f"{title}\nAUC", auc_of(name), max))
        columns.append((f"{title}\nrejected", rejected_of(name), max))
    return _table("Rejection of external data sets, in percent", report, columns)


def predictors_table(report: ScoresReport) -> Table:
    """How well each task predictor finds the task, and what it keeps."""
    table = Table(title="Task predictors on the same networks, in percent")
    table.add_column("predictor", no_wrap=True)
    for heading in ("CIL\nvalid.", "TaskDR", "CIL", "kB of\nstatistics", "kB of\nsamples"):
        table.add_column(heading, justify="right")
    for name in report.external:
        table.add_column(name.replace("-", "-\n") + "\nAUC", justify="right")
    judged = [result.validation.cil for result in report.predictors.values() if result.validation is not None]
    for name, result in report.predictors.items():
        known = result.validation
        best = known is not None and known.cil == max(judged)
        table.add_row(
            name,
            "–" if known is None else f"{100 * known.cil:.1f}" + ("*" if best else " "),
            f"{100 * result.test.task_detection:.1f}",
            f"{100 * result.test.cil:.1f}",
            f"{result.statistics_bytes / 1000:.0f}",
            f"{result.sample_bytes / 1000:.0f}",
            *(f"{100 * result.external[other].auc:.1f}" for other in report.external),
            style="bold" if best else "",
        )
    return table


def _table(title: str, report: ScoresReport, columns: list[Column]) -> Table:
    table = Table(title=title)
    table.add_column("score", no_wrap=True)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    cells = []
    for _, number, choose in columns:
        numbers = [round(100 * number(score), 1) for score in report.scores.values()]
        best = choose(numbers) if choose else None
        cells.append([f"{value:.1f}" + ("*" if value == best else " ") for value in numbers])
    for row, name in enumerate(report.scores):
        table.add_row(name, *(column[row] for column in cells), style="bold" if name == report.best else "")
    return table


def closing_lines(report: ScoresReport) -> list[str]:
    from clom.experiments.analysis.ood_scores import unmet_needs

    best = report.scores[report.best]
    calibrations = ", ".join(f"{100 * result.cil:.1f} (calibration: {name})" for name, result in report.argmax.items())
    lines = [
        "* best in its column. FPR95, AUPR: images of the task are the positives. Rejected: below a threshold that "
        f"rejects at most {100 * best.rejection.wanted:g} percent of the tasks' own validation images.",
        f"TIL {100 * report.til:.1f}. CIL by the largest logit over all tasks, without any OOD score: {calibrations}.",
        f"Best score by AUC on validation images: {report.best}; on test images AUC {100 * best.auc:.1f}, "
        f"CIL {100 * best.rules['task-then-class'].cil:.1f} (task, then class), {100 * best.rules['product'].cil:.1f} "
        "(product).",
    ]
    if not report.exact_memory:
        lines.append(
            "Note: this method's outputs for old tasks drift, so the scores were fitted after the last task to "
            "training images of all tasks, which are not available in continual learning."
        )
    if report.left_out:
        lines.append(f"Scores left out: {unmet_needs(report.method, report.left_out)}")
    if report.missing:
        lines.append(f"Data sets not found: {', '.join(report.missing)}. Use --data to name their folder.")
    return lines
