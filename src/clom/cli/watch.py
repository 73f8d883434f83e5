"""`clom watch`: a running run in the terminal, from the files in its folder; nothing is computed or locked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clom.cli.console import Console
from clom.cli.display import duration
from clom.cli.options import RunFolder
from clom.experiments.run_folder.progress_file import RecordedProgress, Sample, read_progress
from clom.files import parse_json, read_text
from clom.untrusted_text import printable

_QUIET = 120.0
"""Seconds without a new line after which a run counts as stopped; a long evaluation may take as long."""
_BLOCKS, _PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#"


def watch_command(
    run: RunFolder,
    *,
    every: Annotated[float, Parameter(validator=Number(gte=0.2))] = 1.0,
    once: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show a running run: progress and time left, loss, learning rate, accuracy after each task, units in use.

    Works in any terminal that can read the run's folder, also over ssh. Ends with the run; Ctrl-C stops watching only.

    Parameters
    ----------
    run
        The run folder written by `clom run`.
    every
        Seconds between updates.
    once
        Show the state now, and end; the default if the output is not a terminal.
    """
    console = Console()
    if once or not console.is_terminal:
        console.print(view(read_state(run), console, time.time()))
        return
    state = read_state(run)
    with Live(view(state, console, time.time()), console=console, auto_refresh=False) as live:
        while not state.finished:
            time.sleep(every)
            state = read_state(run)
            live.update(view(state, console, time.time()), refresh=True)


def _line(text: str, **options: Any) -> Text:
    """A line that may quote names from files."""
    return Text(printable(text), **options)


@dataclass(frozen=True)
class RunState:
    """What the files of a run tell at one moment."""

    folder: Path
    recorded: RecordedProgress
    results: Sequence[dict[str, Any]]
    """The lines of `metrics.jsonl`."""
    finished: bool


def read_state(folder: Path) -> RunState:
    """Read the files while they are being written: what is missing or incomplete is left out."""
    path = folder / "metrics.jsonl"
    lines = read_text(path).splitlines() if path.exists() else []
    return RunState(folder, read_progress(folder), list(_results(lines)), (folder / "summary.json").exists())


def _results(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            content = parse_json(line)
            first = next(iter(content["by_calibration"].values()))
            yield {"til": float(content["til"]), "cil": float(first["cil"]), "capacity": dict(content["capacity"])}
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
            return


def view(state: RunState, console: Console, now: float) -> Table:
    """Everything about a run that fits a screen."""
    parts = [_line(f"{state.folder}", style="bold", no_wrap=True, overflow="ellipsis"), _progress(state, now)]
    if state.recorded.samples:
        parts += _curves(state.recorded.samples, console)
    if state.results:
        parts += [_accuracy(state.results), *_capacity(state.results[-1]["capacity"], console)]
    page = Table.grid()
    for part in parts:
        page.add_row(part)
    return page


def _progress(state: RunState, now: float) -> Text | Table:
    recorded = state.recorded
    if state.finished:
        return _line(f"Finished. 'clom report {state.folder}' writes a page about it.")
    if not recorded.samples:
        return _line("Training has not begun, or was begun by an earlier version, which recorded no progress.")
    last = recorded.samples[-1]
    if now - last.time > _QUIET:
        ago = duration(now - last.time)
        return _line(f"Nothing was recorded for {ago}. If it was stopped, 'clom resume {state.folder}' continues it.")
    fraction, left, at = recorded.fraction(last), recorded.seconds_left(), last.progress
    words = f"{100 * fraction:3.0f}%  task {at.task + 1}/{recorded.n_tasks}, {at.phase}, epoch {at.epoch}/{at.epochs}"
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=fraction, width=20),
        _line(words + ("" if left is None else f", {duration(left)} left"), no_wrap=True, overflow="ellipsis"),
    )
    return line


def _curves(samples: Sequence[Sample], console: Console) -> Iterator[Text | Table]:
    """The losses of all phases, and the first learning rate and s of the current phase."""
    phase = samples[-1].progress.phase
    for name in dict.fromkeys(name for sample in samples for name in sample.values if name.startswith("loss/")):
        values = [sample.values[name] for sample in samples if name in sample.values]
        yield _line(
            f"{name.replace('/', ', ')}: {values[-1]:.4g} (highest {max(values):.4g}, lowest {min(values):.4g})"
        )
        yield from (
            _line(row, no_wrap=True, style="cyan") for row in chart(values, console.width - 1, 4, _ink(console))
        )
    last = samples[-1].values
    shown = {"rate": f"rate/{phase}", "s": "s"}
    numbers = [f"{word} {last[name]:.3g}" for word, name in shown.items() if name in last]
    opened = {name.partition("/")[2]: share for name, share in last.items() if name.startswith("gates open/")}
    if opened:
        numbers.append("gates open: " + ", ".join(f"{group} {share:.0%}" for group, share in opened.items()))
    if numbers:
        yield _line("   ".join(numbers))


def _accuracy(results: Sequence[dict[str, Any]]) -> Text | Table:
    """TIL and CIL over all tasks so far, after each of the last ten."""
    numbered = list(enumerate(results, start=1))[-10:]
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("accuracy after task")
    for number, _ in numbered:
        table.add_column(str(number), justify="right")
    for name in ("til", "cil"):
        table.add_row(name.upper(), *(f"{100 * result[name]:.1f}" for _, result in numbered))
    return table


def _capacity(capacity: dict[str, Any], console: Console) -> Iterator[Text | Table]:
    if not capacity:
        return
    full, empty = ("█", "·") if _ink(console) == _BLOCKS else ("#", ".")
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("units in use", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    for group, share in capacity.items():
        blocks = round(30 * float(share))
        table.add_row(group, full * blocks + empty * (30 - blocks), f"{float(share):.0%}")
    yield table


def _ink(console: Console) -> str:
    """Characters of increasing height, or darkness where the terminal cannot show blocks."""
    return _BLOCKS if not console.options.ascii_only else _PLAIN


def chart(values: Sequence[float], width: int, height: int, ink: str = _BLOCKS) -> list[str]:
    """A curve as rows of text, from the lowest value, which is one step high, to the highest; each column is the mean
    of its values."""
    count = min(width, len(values))
    edges = [round(column * len(values) / count) for column in range(count + 1)]
    means = [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    lowest, steps = min(means), len(ink) - 1
    per_step = (max(means) - lowest) / (height * steps - 1) or 1.0
    levels = [1 + round((mean - lowest) / per_step) for mean in means]
    return [
        "".join(ink[min(steps, max(0, level - row * steps))] for level in levels) for row in reversed(range(height))
    ]
