"""One run: learn a stream task by task, evaluate after each, leave everything in one directory.

| file | what |
|---|---|
| `config.yaml` | every setting, resolved: what is needed to repeat the run |
| `environment.json` | versions, hardware |
| `metrics.jsonl` | one line per task as it was learned |
| `scores.safetensors` | the scorebook |
| `model.safetensors` | the model after the last learned task |
| `summary.json` | the final figures; its presence says that the run is finished |
| `figure.svg`, `figure.png` | the run at a glance |
| `features.safetensors`, `scores.json` | what `clom scores` computed, and its figures |
| `report.html` | what `clom report` made of it: a page to read |
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save as to_bytes

from clom import machine
from clom.data.stream import Stream
from clom.errors import UserError, shorten
from clom.evaluation.metrics import Evaluation, average_incremental, evaluate, forgetting
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import RunConfig
from clom.experiments.plain_yaml import read_yaml
from clom.files import parse_json, read_text
from clom.learning.loop import Report, silent
from clom.methods.base import Method
from clom.model.store import load_model, read_tensors, save_model, write_safely


@dataclass(frozen=True)
class TaskResult:
    """One line of `metrics.jsonl`."""

    evaluation: Evaluation
    minutes: float
    """Time spent learning and evaluating this task."""
    capacity: dict[str, float]
    """Gate group -> fraction of its units in use; empty for methods without gates."""

    def to_json(self) -> dict[str, Any]:
        return {"minutes": self.minutes, "capacity": self.capacity, **self.evaluation.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TaskResult:
        return TaskResult(Evaluation.from_json(data), data["minutes"], data["capacity"])


@dataclass(frozen=True)
class RunResult:
    """What a run left behind."""

    folder: Path
    config: RunConfig
    class_names: tuple[tuple[str, ...], ...]
    tasks: list[TaskResult]
    summary: dict[str, Any]

    @property
    def history(self) -> list[Evaluation]:
        return [task.evaluation for task in self.tasks]


def execute(
    config: RunConfig,
    stream: Stream,
    folder: Path,
    report: Report = silent,
    on_task: Callable[[TaskResult, int], None] = lambda result, n_tasks: None,
) -> RunResult:
    """Do the run, or what is left of it: tasks that are in `folder` already are not learned again."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but a run needs a folder. Choose another one with --out.")
    if (folder / "config.yaml").exists() and (folder / "config.yaml").read_text(encoding="utf-8") != text:
        raise UserError(f"{folder} holds a run with other settings. Choose another folder with --out, or remove it.")
    write_safely(folder / "config.yaml", text.encode())
    method, book, results = _continue(config, stream, folder)
    if len(method.tasks) < len(stream):  # a finished run keeps the record of where it was done
        write_safely(folder / "environment.json", _json(machine.describe()))
    for task in list(stream)[len(method.tasks) :]:
        started = time.monotonic()
        method.learn(task, report)
        book.update(method)
        evaluation = evaluate(book, method.calibrations())
        results.append(TaskResult(evaluation, (time.monotonic() - started) / 60, _capacity(method)))
        _save(folder, method, book, results)
        on_task(results[-1], len(stream))
    summary = _summary(config, method, results)
    write_safely(folder / "summary.json", _json(summary))
    return RunResult(folder, config, stream.class_names, results, summary)


def is_finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def read_finished(folder: Path) -> RunConfig:
    """What was run in `folder`, if it was run to the end."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: there is no config.yaml in it. 'clom run' makes one.")
    if not is_finished(folder):
        raise UserError(f"The run in {folder} is not finished. The 'clom run' command that began it goes on with it.")
    try:
        return RunConfig.model_validate(read_yaml(folder / "config.yaml"))
    except (UserError, ValidationError) as problem:
        raise UserError(f"{folder / 'config.yaml'} is damaged or of another version of this program.") from problem


def _continue(config: RunConfig, stream: Stream, folder: Path) -> tuple[Method, Scorebook, list[TaskResult]]:
    """What an earlier, interrupted execution of the same run left, or a fresh start.

    A task's learning depends only on the seed, its number and the state before it, so going on at a task's end gives
    what the unbroken run would have given.
    """
    book = Scorebook(stream.tests)
    if not (folder / "model.safetensors").exists():
        return config.make_method(stream.image_shape), book, []
    method = load_model(folder / "model.safetensors")
    book.restore(read_tensors(folder / "scores.safetensors")[0], len(method.tasks))
    return method, book, read_results(folder / "metrics.jsonl", len(method.tasks))


def read_results(path: Path, n_tasks: int) -> list[TaskResult]:
    """The first lines of `metrics.jsonl`, one for each task of the model beside it."""
    try:
        lines = read_text(path).splitlines()[:n_tasks]
        results = [_checked(TaskResult.from_json(parse_json(line)), n) for n, line in enumerate(lines, start=1)]
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as problem:
        why = shorten(" ".join(str(problem).split()), 300)
        raise UserError(f"{path} cannot be read ({why}). Remove the run's folder to start anew.") from None
    if len(results) != n_tasks:
        raise UserError(f"{path} tells of {len(results)} tasks, the model beside it of {n_tasks}. Start the run anew.")
    return results


def _checked(result: TaskResult, n_tasks: int) -> TaskResult:
    """The same, if every figure is a number and there is one for each task."""
    TypeAdapter(TaskResult).validate_python(result.to_json() | {"evaluation": result.evaluation.to_json()})
    found = result.evaluation
    ways = list(found.by_calibration.values())
    rows = [found.til_by_task, *(row for way in ways for row in (way.cil_by_task, *way.task_confusion))]
    if found.n_tasks != n_tasks or not ways or {len(way.task_confusion) for way in ways} != {n_tasks}:
        raise ValueError(f"it does not tell of {n_tasks} tasks")
    if any(len(row) != n_tasks or not all(map(math.isfinite, row)) for row in rows):
        raise ValueError(f"it does not have a figure for each of {n_tasks} tasks")
    return result


def _save(folder: Path, method: Method, book: Scorebook, results: list[TaskResult]) -> None:
    """The model last: the other two may be ahead of it after an interruption, which does no harm."""
    lines = "".join(json.dumps(result.to_json()) + "\n" for result in results)
    write_safely(folder / "metrics.jsonl", lines.encode())
    write_safely(folder / "scores.safetensors", to_bytes(book.state()))
    save_model(folder / "model.safetensors", method)


def _capacity(method: Method) -> dict[str, float]:
    return {group: after[-1] for group, after in method.capacity().items()}


def _summary(config: RunConfig, method: Method, results: list[TaskResult]) -> dict[str, Any]:
    history = [result.evaluation for result in results]
    last = history[-1]
    return {
        "experiment": config.experiment,
        "method": config.method,
        "budget": config.budget,
        "seed": config.seed,
        "overrides": config.overrides,
        "til": last.til,
        "cil": last.preferred.cil,
        "cil_by_calibration": {name: way.cil for name, way in last.by_calibration.items()},
        "task_detection": last.preferred.task_detection,
        "auc_maxlogit": last.preferred.auc_maxlogit,
        "auc_msp": last.preferred.auc_msp,
        "forgetting": forgetting(history),
        "average_incremental_til": average_incremental(history, lambda e: e.til),
        "average_incremental_cil": average_incremental(history, lambda e: e.preferred.cil),
        "parameters": method.n_parameters(),
        "memory_bytes": method.memory_bytes,
        "minutes": sum(result.minutes for result in results),
        "peak_memory_gb": round((machine.peak_memory_bytes() or 0) / 1e9, 2),
    }


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()
