"""`clom compare`: results and settings of finished runs side by side."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from clom.cli.console import Console
from clom.cli.options import Json, RunFolder
from clom.errors import DataError, UserError, shorten
from clom.files import parse_json, read_json, read_text
from clom.settings import flatten

_Shown = Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


ROWS: dict[str, tuple[str, _Shown]] = {
    "cil": ("CIL, %", _percent),
    "til": ("TIL, %", _percent),
    "task_detection": ("task detection, %", _percent),
    "auc_maxlogit": ("AUC, max logit, %", _percent),
    "auc_msp": ("AUC, MSP, %", _percent),
    "forgetting": ("forgetting, points", _percent),
    "average_incremental_cil": ("average incremental CIL, %", _percent),
    "average_incremental_til": ("average incremental TIL, %", _percent),
    "parameters": ("parameters, million", lambda value: f"{value / 1e6:.2f}"),
    "memory_bytes": ("stored samples, kB", lambda value: f"{value / 1000:.0f}"),
    "passes": ("training passes, thousand", lambda value: f"{value / 1000:,.1f}"),
    "minutes": ("minutes", lambda value: f"{value:.1f}"),
    "cpu_minutes": ("core minutes", lambda value: f"{value:.1f}"),
    "peak_memory_gb": ("peak memory, GB", lambda value: f"{value:.1f}"),
}
"""Entries of `summary.json`."""


def compare_command(run: RunFolder, other: RunFolder, /, *more: RunFolder, json: Json = False) -> None:
    """Compare finished runs: their results, their accuracy by task, and the settings in which they differ.

    Parameters
    ----------
    run
        Folder of a finished run.
    other
        Folder of another one; more may follow. Differences are to the first.
    """
    runs = [read_summary(folder) for folder in (run, other, *more)]
    if json:
        print(json_format.dumps(as_json(runs), indent=2))
        return
    console = Console()
    differing = differing_settings(runs)
    settings = settings_table(runs, differing) if differing else "All settings are equal."
    console.print(results_table(runs))
    for part in (tasks_table(runs), settings):
        if part is not None:
            console.print()
            console.print(part)


@dataclass(frozen=True)
class Summary:
    """What is compared of one run."""

    folder: Path
    figures: Mapping[str, float]
    """The entries of `summary.json` in `ROWS` that it has."""
    settings: Mapping[str, Any]
    """By dotted name, with the experiment, method, budget and seed."""
    cil_by_task: Sequence[float]
    til_by_task: Sequence[float]


def read_summary(folder: Path) -> Summary:
    """Read the files of a finished run, without torch and without its model."""
    from clom.experiments.plain_yaml import read_yaml

    if not (folder / "summary.json").exists():
        raise UserError(f"The run in {folder} is not finished. 'clom resume {folder}' continues it.")
    summary, config = read_json(folder / "summary.json"), read_yaml(folder / "config.yaml")
    try:
        figures = {name: float(summary[name]) for name in ROWS if summary.get(name) is not None}
        last = parse_json(read_text(folder / "metrics.jsonl").splitlines()[-1])
        chosen = next(iter(last["by_calibration"].values()))
        by_task = [[float(value) for value in values] for values in (chosen["cil_by_task"], last["til_by_task"])]
        named = {name: value for name, value in config.items() if name not in ("settings", "overrides")}
        settings = flatten({**named, **config["settings"]})
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as problem:
        raise DataError(
            f"The files in {folder} are damaged or of another version ({shorten(repr(problem))})."
        ) from None
    return Summary(folder, figures, settings, *by_task)


def names_of(runs: Sequence[Summary]) -> list[str]:
    """The folders' names, or their paths where names are equal."""
    names = [run.folder.resolve().name for run in runs]
    return [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]


def differing_settings(runs: Sequence[Summary]) -> dict[str, list[Any]]:
    """Settings by dotted name -> the value of each run, None if it has no such setting."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: given for name, given in values.items() if any(value != given[0] for value in given)}


def as_json(runs: Sequence[Summary]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "folder": str(run.folder),
                **run.figures,
                "cil_by_task": run.cil_by_task,
                "til_by_task": run.til_by_task,
            }
            for run in runs
        ],
        "settings": differing_settings(runs),
    }


def _table(heading: str, runs: Sequence[Summary]) -> Table:
    """One column per run; a name that is too long continues on the next line, and is never cut."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column(heading, overflow="fold")
    for name in names_of(runs):
        table.add_column(name, justify="right", overflow="fold")
    return table


def results_table(runs: Sequence[Summary]) -> Table:
    """The figures of each run and, for two runs, the difference."""
    table = _table("result", runs)
    if len(runs) == 2:
        table.add_column("difference", justify="right", no_wrap=True)
    for name, (label, shown) in ROWS.items():
        values = [run.figures.get(name) for run in runs]
        if all(value is None for value in values):
            continue
        cells = ["-" if value is None else shown(value) for value in values]
        if len(runs) == 2:
            cells.append(_difference(values, shown))
        table.add_row(label, *cells)
    return table


def _difference(values: Sequence[float | None], shown: _Shown) -> str:
    first, second = values
    if first is None or second is None:
        return "-"
    text = shown(abs(second - first))
    return text if float(text.replace(",", "")) == 0 else f"{'+' if second > first else '-'}{text}"


def tasks_table(runs: Sequence[Summary]) -> Table | None:
    """CIL and TIL by task, if the runs have as many tasks."""
    counts = {len(run.cil_by_task) for run in runs}
    if len(counts) > 1:
        return None
    table = _table("task: CIL / TIL, %", runs)
    for task in range(counts.pop()):
        table.add_row(
            str(task + 1), *(f"{_percent(run.cil_by_task[task])} / {_percent(run.til_by_task[task])}" for run in runs)
        )
    return table


def settings_table(runs: Sequence[Summary], differing: Mapping[str, Sequence[Any]]) -> Table:
    table = _table("setting", runs)
    for name, values in differing.items():
        table.add_row(name, *("-" if value is None else shorten(str(value), 60) for value in values))
    return table
