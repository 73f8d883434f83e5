"""One run: learn a stream task by task, evaluate after each, leave everything in one directory.

| file | what |
|---|---|
| `config.yaml` | every setting, resolved: what is needed to repeat the run |
| `environment.json` | versions, hardware, threads, command, checksum of the data |
| `metrics.jsonl` | one line per task as it was learned |
| `scores.safetensors` | the scorebook |
| `model.safetensors` | the model after the last learned task |
| `checkpoints/` | how far the task being learned is; gone when it is learned |
| `summary.json` | the final figures; its presence says that the run is finished |
| `figure.svg`, `figure.png` | the run at a glance |
| `features.safetensors`, `scores.json` | what `clom scores` computed, and its figures |
| `report.html` | what `clom report` made of it: a page to read |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from clom import machine
from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import Evaluation, average_incremental, evaluate, forgetting
from clom.evaluation.scorebook import Scorebook
from clom.experiments import provenance
from clom.experiments.config import RunConfig, require_plugins
from clom.experiments.plain_yaml import read_yaml
from clom.experiments.task_result import TaskResult as TaskResult
from clom.experiments.task_result import read_results as read_results
from clom.files import write_atomically, write_json, writing
from clom.launch import read_launch
from clom.learning.context import TrainingContext
from clom.learning.precision import Precision, choose_precision, network_pass
from clom.learning.progress import OnProgress, ignore
from clom.locks import Lock
from clom.machine import choose_device
from clom.methods.families.base import Method, move
from clom.methods.registry import method_class, method_info
from clom.stopping import StopRequest
from clom.storage.checkpoints import RESUME_HINT, SECONDS, CheckpointFolder
from clom.storage.model_file import load_model, save_model
from clom.storage.score_file import read_scores, write_scores


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
    on_progress: OnProgress = ignore,
    on_task: Callable[[TaskResult, int], None] = lambda result, n_tasks: None,
    *,
    every: float = SECONDS,
    stop: StopRequest | None = None,
    data: Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> RunResult:
    """Do the run, or what is left of it: what is in `folder` already, even part of a task, is not learned again.

    While a task is learned a checkpoint is made `every` so many seconds, and when `stop` asks for the end. `data` is
    the folder of data sets, for the record and for methods that need more than the stream's images. `device` and
    `precision` may be `auto`; an interrupted run keeps the precision it was started with unless another one is named.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but a run needs a folder. Choose another one with --out.")
    stop = stop or StopRequest()
    fresh = None if (folder / "model.safetensors").exists() else _fresh(config, stream)
    with ExitStack() as held:
        with writing(folder, RESUME_HINT):
            held.enter_context(Lock(folder, "worked on"))
        _begin(config, folder)
        method, book, results = _continue(fresh, stream, folder)
        move(method, choose_device(device, read_launch().local_rank))
        chosen = _precision(precision, folder, config, method)
        if len(method.tasks) < len(stream):  # a finished run keeps the record of where it was done
            with writing(folder, RESUME_HINT):
                provenance.record(folder, config, stream, data, str(method.device), chosen)
        for task in list(stream)[len(method.tasks) :]:
            stop.raise_if_requested()
            place, belongs_to = folder / "checkpoints", _fingerprint(folder)
            checkpoints = CheckpointFolder(place, len(method.tasks), belongs_to, every=every, stop=stop)
            method.learn(task, TrainingContext(on_progress, checkpoints, precision=chosen, data=data))
            book.update(method)
            evaluation = evaluate(book, method.calibrations())
            minutes, cpu_minutes = checkpoints.seconds / 60, checkpoints.cpu_seconds / 60
            results.append(TaskResult(evaluation, minutes, cpu_minutes, _capacity(method)))
            with writing(folder, RESUME_HINT):
                _save(folder, method, book, results)
            checkpoints.clear()
            on_task(results[-1], len(stream))
        summary = _summary(config, method, results)
        with writing(folder, RESUME_HINT):
            write_json(folder / "summary.json", summary)
    return RunResult(folder, config, stream.class_names, results, summary)


def _precision(name: str, folder: Path, config: RunConfig, method: Method) -> Precision:
    if name == "auto":
        name = provenance.recorded(folder).get("precision", name)
    own_network = method_info(config.method).divisible  # others train networks of their own, always in float32
    measured = network_pass(config.net, method.image_shape[-1]) if name == "auto" and own_network else None
    return choose_precision(name, method.device, measured)


def _begin(config: RunConfig, folder: Path) -> None:
    """Make sure that the folder is this run's, and clear away what a killed process was writing."""
    text, path = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), folder / "config.yaml"
    if path.exists() and path.read_bytes() != text.encode() and not _same_run(config, folder):
        raise UserError(f"{folder} holds a run with other settings. Choose another folder with --out, or remove it.")
    with writing(folder, RESUME_HINT):
        for unfinished in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
            unfinished.unlink(missing_ok=True)
        if not path.exists():
            write_atomically(path, text.encode())


def _same_run(config: RunConfig, folder: Path) -> bool:
    """Whether the folder's `config.yaml` means the same, though an older version named some settings differently."""
    try:
        return _comparable(read_config(folder)) == _comparable(config)
    except (UserError, ValidationError):
        return False


def _comparable(config: RunConfig) -> RunConfig:
    settings = method_class(config.method).settings_type.model_validate(config.settings)
    # `overrides` repeats some of the settings, under the names that were used then.
    return config.model_copy(update={"settings": settings.model_dump(mode="json"), "overrides": {}})


def _fingerprint(folder: Path) -> str:
    """Of the settings and the model before the task: a checkpoint of anything else must not be taken for ours."""
    digest = hashlib.sha256((folder / "config.yaml").read_bytes())
    model = folder / "model.safetensors"
    digest.update(model.read_bytes() if model.exists() else b"")
    return digest.hexdigest()


def is_finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def read_finished(folder: Path) -> RunConfig:
    """What was run in `folder`, if it was run to the end."""
    config = read_config(folder)
    if not is_finished(folder):
        raise UserError(f"The run in {folder} is not finished. 'clom resume {folder}' goes on with it.")
    return config


def read_config(folder: Path) -> RunConfig:
    """What is run in `folder`."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: there is no config.yaml in it. 'clom run' makes one.")
    damaged = f"{folder / 'config.yaml'} is damaged or of another version of this program."
    try:
        content = read_yaml(folder / "config.yaml")
    except UserError as problem:
        raise UserError(damaged) from problem
    if isinstance(content, dict):
        require_plugins(content, f"The run in {folder}")
    try:
        return RunConfig.model_validate(content)
    except (UserError, ValidationError) as problem:
        raise UserError(damaged) from problem


def _fresh(config: RunConfig, stream: Stream) -> Method:
    """The method, untrained. What it cannot learn is refused here, before anything of the run is written."""
    method = config.make_method(stream.image_shape)
    for task in stream:
        if task.n_classes < method.least_classes:
            raise UserError(
                f"'{config.method}' cannot learn {task.name}, which has the class '{task.class_names[0]}' alone: it "
                f"learns by telling a task's own classes apart, and needs at least {method.least_classes}."
            )
    return method


def _continue(fresh: Method | None, stream: Stream, folder: Path) -> tuple[Method, Scorebook, list[TaskResult]]:
    """What an earlier, interrupted execution of the same run left, or a fresh start.

    A task's learning depends only on the seed, its number and the state before it, so going on at a task's end gives
    what the unbroken run would have given. Within a task the checkpoints know how far it is.
    """
    book = Scorebook(stream.tests)
    if fresh is not None and not (folder / "model.safetensors").exists():
        return fresh, book, []
    method = load_model(folder / "model.safetensors")
    book.restore(read_scores(folder / "scores.safetensors", [task.n_classes for task in method.tasks]))
    return method, book, read_results(folder / "metrics.jsonl", len(method.tasks))


def _save(folder: Path, method: Method, book: Scorebook, results: list[TaskResult]) -> None:
    """The model last: the other two may be ahead of it after an interruption, which does no harm."""
    write_atomically(folder / "metrics.jsonl", "".join(result.to_line() for result in results).encode())
    write_scores(folder / "scores.safetensors", book.all_blocks())
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
        "cpu_minutes": sum(result.cpu_minutes for result in results),
        "peak_memory_gb": round((machine.peak_memory_bytes() or 0) / 1e9, 2),
    }
