"""Progress of long jobs: a bar in a terminal, periodic lines elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table

from clom.cli.console import Console
from clom.errors import shorten
from clom.reporting.labels import cil_label, work_label
from clom.untrusted_text import printable

if TYPE_CHECKING:
    from clom.experiments.run import RunResult, TaskResult
    from clom.learning.progress import Progress as Step

_NEARLY_FULL = 0.98
_BAR, _PERCENTAGE = 20, 7  # columns, with the spaces between them


class Display:
    """Shows task, epoch, loss, accuracy so far and time left. A context manager, so that the bar is always removed."""

    def __init__(self, console: Console, n_tasks: int, seconds_between_lines: float = 10.0) -> None:
        self.console = console
        self.n_tasks = n_tasks
        self.accuracy = ""
        self._pause = seconds_between_lines
        self._started = self._last_line = time.monotonic()
        self._first_fraction: float | None = None
        self._bar = progress_bar(console)
        self._bar_id = self._bar.add_task("starting", total=1.0) if self._bar else None

    def __enter__(self) -> Display:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, step: Step) -> None:
        fraction = (step.task + step.share) / self.n_tasks
        now = time.monotonic()
        if self._first_fraction is None:
            self._first_fraction, self._started = fraction, now
        if self._bar is None and now - self._last_line < self._pause:
            return
        self._last_line = now
        left, where = self._time_left(fraction, now), printable(self._where(step))
        loss = "" if math.isnan(step.loss) else f"loss {step.loss:.3f}"
        if self._bar and self._bar_id is not None:
            text = beside_bar(self.console, f"{left}, {where}" if left else where, loss, self.accuracy)
            self._bar.update(self._bar_id, completed=fraction, description=text)
        else:
            text = ", ".join(part for part in (where, loss, self.accuracy, left) if part)
            self.console.print(f"{100 * fraction:3.0f}%  {text}", highlight=False, soft_wrap=True)

    def _where(self, step: Step) -> str:
        return f"task {step.task + 1}/{self.n_tasks}, {step.phase}, epoch {step.epoch}/{step.epochs}"

    def _time_left(self, fraction: float, now: float) -> str:
        done = fraction - (self._first_fraction or 0.0)
        if done < 0.01:
            return ""
        return f"{duration((now - self._started) / done * (1 - fraction))} left"

    def task_done(self, result: TaskResult, n_tasks: int) -> None:
        evaluation = result.evaluation
        self.accuracy = f"so far TIL {100 * evaluation.til:.1f} CIL {100 * evaluation.preferred.cil:.1f}"
        self.console.print(
            f"Learned task {evaluation.n_tasks} of {n_tasks} in {duration(60 * result.minutes)}: over all tasks so far "
            f"TIL {100 * evaluation.til:.1f}, CIL {100 * evaluation.preferred.cil:.1f}",
            highlight=False,
            soft_wrap=True,
        )
        full = [group for group, used in result.capacity.items() if used > _NEARLY_FULL]
        if full and evaluation.n_tasks < n_tasks:
            self.console.print(
                f"Warning: nearly all units of {', '.join(full)} are in use; later tasks can reuse them but add few. "
                "A wider network, a higher sparsity in the method's settings or, for hard attention, attention.growth: "
                "auto leaves more capacity.",
                highlight=False,
                soft_wrap=True,
            )


def progress_bar(console: Console) -> Progress | None:
    """A bar, the percentage, and a text made with `beside_bar`; None unless the console is a terminal."""
    percentage, text = ("{task.percentage:3.0f}%", "{task.description}")
    texts = [TextColumn(content, markup=False, table_column=Column(no_wrap=True)) for content in (percentage, text)]
    return Progress(BarColumn(_BAR), *texts, console=console, transient=True) if console.is_terminal else None


def beside_bar(console: Console, *parts: str) -> str:
    """As many of the parts as fit beside the bar, the first ones first; the first is cut if it does not fit."""
    chosen, width = "", console.width - _BAR - _PERCENTAGE
    for part in filter(None, parts):
        longer = f"{chosen}, {part}" if chosen else part
        if cell_len(longer) <= width:
            chosen = longer
        elif not chosen:
            return set_cell_size(part, max(0, width - 1)) + "…"
    return chosen


class LessonDisplay(Display):
    """Progress of one task that is added to a model."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, n_tasks=1)
        self._name = name

    def step(self, step: Step) -> None:
        super().step(replace(step, task=0))

    def _where(self, step: Step) -> str:
        epoch = f", epoch {step.epoch}/{step.epochs}" if step.epochs > 1 else ""
        return f"learning '{shorten(self._name, 30)}': {step.phase}{epoch}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def result_table(result: RunResult) -> Table:
    """TIL and CIL by task, and their averages, in percent."""
    last = result.history[-1]
    table = Table(title=f"{result.config.experiment}, {result.config.method}: accuracy in percent after all tasks")
    table.add_column("task")
    table.add_column("classes")
    table.add_column("TIL", justify="right")
    for name in last.by_calibration:
        table.add_column(cil_label(name), justify="right")
    for task, til in enumerate(last.til_by_task):
        cil = [f"{100 * calibrated.cil_by_task[task]:.1f}" for calibrated in last.by_calibration.values()]
        table.add_row(str(task + 1), _short(result.class_names[task]), f"{100 * til:.1f}", *cil)
    table.add_section()
    averages = [f"{100 * calibrated.cil:.1f}" for calibrated in last.by_calibration.values()]
    table.add_row("all", "", f"{100 * last.til:.1f}", *averages, style="bold")
    return table


def _short(names: tuple[str, ...], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def summary_lines(summary: dict[str, Any]) -> list[str]:
    work = work_label(summary)
    return [
        f"forgetting {100 * summary['forgetting']:.1f}   task detection {100 * summary['task_detection']:.1f}   "
        f"AUC {100 * summary['auc_maxlogit']:.1f} (max logit), {100 * summary['auc_msp']:.1f} (MSP)",
        f"average incremental accuracy: TIL {100 * summary['average_incremental_til']:.1f}, "
        f"CIL {100 * summary['average_incremental_cil']:.1f}",
        f"{summary['parameters'] / 1e6:.2f} M parameters, {summary['memory_bytes'] / 1000:.0f} kB of stored samples, "
        f"{summary['minutes']:.1f} minutes, {summary['peak_memory_gb']:.1f} GB peak memory",
        *([work] if work else []),
    ]
