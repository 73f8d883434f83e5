"""One run: learn a stream task by task, evaluate after each task, and write everything to one folder.

| file | content |
|---|---|
| `config.yaml` | all settings, resolved: enough to repeat the run |
| `environment.json` | versions, hardware, threads, command, checksum of the data |
| `metrics.jsonl` | one line per learned task |
| `progress.jsonl` | losses, rates and gates during training (`clom.experiments.run_folder.progress_file`) |
| `scores.safetensors` | the scorebook |
| `model.safetensors` | the model after the last learned task |
| `checkpoints/` | checkpoints of the task being learned; deleted when it is learned |
| `summary.json` | the final results; exists only if the run is finished |
| `signature.json` | checksums of the files above that decide the results |
| `figure.svg`, `figure.png` | an overview of the run |
| `features.safetensors`, `scores.json` | outputs and results of `clom scores` |
| `report.html` | the page written by `clom report` |
| `tensorboard/`, `wandb/`, `wandb.id`, `mlflow.id` | written with `--track` |
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from clom import machine
from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import Evaluation, average_incremental, evaluate, forgetting
from clom.evaluation.scorebook import Scorebook
from clom.experiments import provenance
from clom.experiments.allowance import unit_of_passes
from clom.experiments.config import RunConfig, require_plugins
from clom.experiments.plain_yaml import read_yaml
from clom.experiments.run_folder import signature
from clom.experiments.run_folder.progress_file import OnValues, ProgressFile, ignore_values
from clom.experiments.task_result import TaskResult as TaskResult
from clom.experiments.task_result import read_results as read_results
from clom.files import write_atomically, write_json, writing
from clom.launch import read_launch
from clom.learning.context import TrainingContext
from clom.learning.precision import Precision, choose_precision, network_pass
from clom.learning.progress import OnProgress, Progress, ignore
from clom.locks import Lock
from clom.machine import choose_device
from clom.methods.families.base import Method, move
from clom.methods.registry import method_class, method_info
from clom.nets.compiling import BACKEND, require_compiler
from clom.nets.passes import PassCounter
from clom.stopping import StopRequest
from clom.storage.checkpoints import RESUME_HINT, SECONDS, CheckpointFolder
from clom.storage.model_file import load_model, save_model
from clom.storage.score_file import read_scores, write_scores

T = TypeVar("T")


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

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
    compile: bool = False,
    allowance: float | None = None,
    on_values: OnValues = ignore_values,
) -> RunResult:
    """Execute a run, or resume it from `folder`, even within a task.

    While a task is learned, a checkpoint is written `every` so many seconds, and when `stop` is requested. `data` is
    the folder of data sets, for the record and for methods that need more than the stream's images. `device` and
    `precision` may be `auto`; an interrupted run keeps its precision unless another one is given. `compile` trains the
    network with torch.compile. `allowance` is the number of passes that the run may use, for the record:
    `require_within` checks it. `on_values` gets what `progress.jsonl` records during training.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but a run needs a folder. Choose another path with --out.")
    stop = stop or StopRequest()
    fresh = None if (folder / "model.safetensors").exists() else _fresh(config, stream)
    with ExitStack() as held:
        with writing(folder, RESUME_HINT):
            held.enter_context(Lock(folder, "worked on"))
        _begin(config, folder)
        method, book, results = _continue(config, fresh, stream, folder)
        move(method, choose_device(device, read_launch().local_rank))
        chosen = _precision(precision, folder, config, method)
        if compile:
            require_compiler(method.device)
        if len(method.tasks) < len(stream):  # a finished run keeps its record
            with writing(folder, RESUME_HINT):
                where = str(method.device), chosen, compile
                provenance.record(folder, config, stream, data, *where, allowance)
            unit = unit_of_passes(config, stream.image_shape[-1])
            recorded = ProgressFile(folder, method, len(stream), on_values)

            def on_step(progress: Progress) -> None:
                on_progress(progress)
                recorded.step(progress)

        for task in list(stream)[len(method.tasks) :]:
            stop.raise_if_requested()
            checkpoints = CheckpointFolder(
                folder / "checkpoints", len(method.tasks), _fingerprint(folder), every=every, stop=stop
            )
            backend, passes = BACKEND if compile else None, PassCounter(unit)
            how: dict[str, Any] = {"precision": chosen, "data": data, "compile_with": backend, "passes": passes}
            method.learn(task, TrainingContext(on_step, checkpoints, **how))
            book.update(method)
            evaluation = evaluate(book, method.decisions())
            minutes, cpu_minutes = checkpoints.seconds / 60, checkpoints.cpu_seconds / 60
            used = passes.total if math.isfinite(passes.total) else None  # NaN: resumed from an old checkpoint
            capacity, units = _last(method.capacity()), _last(method.unit_counts())
            results.append(TaskResult(evaluation, minutes, cpu_minutes, capacity, used, units))
            with writing(folder, RESUME_HINT):
                images = provenance.recorded(folder).get("data_sha256")
                signature.update(folder, images, partial(_save, method=method, book=book, results=results))
            checkpoints.clear()
            on_task(results[-1], len(stream))
        summary = _summary(config, method, results, provenance.recorded(folder).get("allowance"))
        with writing(folder, RESUME_HINT):
            _save_summary(folder, summary)
    return RunResult(folder, config, stream.class_names, results, summary)


def _precision(name: str, folder: Path, config: RunConfig, method: Method) -> Precision:
    if name == "auto":
        name = provenance.recorded(folder).get("precision", name)
    uses_net = method_info(config.method).divisible  # other methods train other networks, always in float32
    measured = network_pass(config.net, method.image_shape[-1]) if name == "auto" and uses_net else None
    return choose_precision(name, method.device, measured)


def _begin(config: RunConfig, folder: Path) -> None:
    """Check that the folder belongs to this run, and delete partial files of a killed process."""
    text, path = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), folder / "config.yaml"
    if path.exists() and path.read_bytes() != text.encode() and not _same_run(config, folder):
        raise UserError(f"{folder} has a run with other settings. Choose another folder with --out, or remove it.")
    signature.check(folder)
    with writing(folder, RESUME_HINT):
        for unfinished in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
            unfinished.unlink(missing_ok=True)
        signature.remove_leftovers(folder)
        if not path.exists():
            write_atomically(path, text.encode())
        if not signature.is_signed(folder) and not (folder / "model.safetensors").exists():
            signature.begin(folder)


def _same_run(config: RunConfig, folder: Path) -> bool:
    """Whether the folder's `config.yaml` is equivalent: older versions had other names for some settings."""
    try:
        return _comparable(read_config(folder)) == _comparable(config)
    except (UserError, ValidationError):
        return False


def _comparable(config: RunConfig) -> RunConfig:
    settings = method_class(config.method).settings_type.model_validate(config.settings)
    # `overrides` repeats some of the settings, under the names of that version; the others change no result.
    unimportant: dict[str, Any] = {"overrides": {}, "common_net": None, "search": None}
    return config.model_copy(update={"settings": settings.model_dump(mode="json"), **unimportant})


def _fingerprint(folder: Path) -> str:
    """Hash of the settings and the model before the task, so that checkpoints of another run are not used."""
    digest = hashlib.sha256((folder / "config.yaml").read_bytes())
    model = folder / "model.safetensors"
    digest.update(model.read_bytes() if model.exists() else b"")
    return digest.hexdigest()


def is_finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def read_finished(folder: Path) -> RunConfig:
    """The configuration of the finished run in `folder`."""
    config = read_config(folder)
    if not is_finished(folder):
        raise UserError(f"The run in {folder} is not finished. 'clom resume {folder}' continues it.")
    signature.check(folder)
    return config


def read_config(folder: Path) -> RunConfig:
    """The configuration of the run in `folder`."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no config.yaml. 'clom run' creates one.")
    damaged = f"{folder / 'config.yaml'} is damaged or from another version of this program."
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
    """The untrained method. A stream that it cannot learn is refused here, before the run writes anything."""
    method = config.make_method(stream.image_shape, stream.n_classes)
    for task in stream:
        if task.n_classes < method.least_classes:
            raise UserError(
                f"'{config.method}' cannot learn {task.name}, which has only the class '{task.class_names[0]}': it "
                f"discriminates between the classes of a task and needs at least {method.least_classes}."
            )
    return method


def _continue(
    config: RunConfig, fresh: Method | None, stream: Stream, folder: Path
) -> tuple[Method, Scorebook, list[TaskResult]]:
    """The state of an interrupted execution of the same run, or that of a new run.

    Learning a task depends only on the seed, its number and the state before it, so resuming after a task gives the
    result of an uninterrupted run. Checkpoints are for resuming within a task.
    """
    book = Scorebook(stream.tests)
    if fresh is not None and not (folder / "model.safetensors").exists():
        return fresh, book, []
    method = load_model(folder / "model.safetensors")
    _check_settings(config, method, folder)
    book.restore(read_scores(folder / "scores.safetensors", [task.n_classes for task in method.tasks]))
    return method, book, read_results(folder / "metrics.jsonl", len(method.tasks))


def _check_settings(config: RunConfig, method: Method, folder: Path) -> None:
    """The model was trained as the configuration says; a signature implies it, but earlier versions did not sign."""
    made = method_class(config.method).settings_type.model_validate(config.settings)
    if getattr(made, "n_classes", 0) is None:
        made = made.model_copy(update={"n_classes": method.settings.n_classes})  # type: ignore[attr-defined]
    expected = {"method": config.method, "seed": config.seed, "network": config.net, "settings": made}
    found = {"method": method.name, "seed": method.seed, "network": method.net_settings, "settings": method.settings}
    if differing := [name for name in expected if expected[name] != found[name]]:
        raise UserError(
            f"{folder / 'config.yaml'} and {folder / 'model.safetensors'} do not belong together: they differ in "
            f"{' and '.join(differing)}. Restore the one that was changed, or start over in another folder."
        )


def _save(folder: Path, method: Method, book: Scorebook, results: list[TaskResult]) -> None:
    """After an interruption the other files may be ahead of the model, which is replaced last; that is harmless."""
    write_atomically(folder / "metrics.jsonl", "".join(result.to_line() for result in results).encode())
    write_scores(folder / "scores.safetensors", book.all_blocks())
    save_model(folder / "model.safetensors", method)


def _save_summary(folder: Path, summary: dict[str, Any]) -> None:
    if not signature.is_signed(folder):  # finished by an earlier version
        write_json(folder / "summary.json", summary)
        return
    images = provenance.recorded(folder).get("data_sha256")
    signature.update(folder, images, lambda stage: write_json(stage / "summary.json", summary))


def _last(history: Mapping[str, Sequence[T]]) -> dict[str, T]:
    """The values of each gate group after the last task."""
    return {group: values[-1] for group, values in history.items()}


def _summary(config: RunConfig, method: Method, results: list[TaskResult], allowance: float | None) -> dict[str, Any]:
    history = [result.evaluation for result in results]
    last = history[-1]
    passes = [result.passes for result in results if result.passes is not None]
    return {
        "experiment": config.experiment,
        "method": config.method,
        "budget": config.budget,
        "seed": config.seed,
        "overrides": config.overrides,
        "search": config.search,
        "til": last.til,
        "cil": last.preferred.cil,
        "cil_by_calibration": {name: result.cil for name, result in last.by_calibration.items()},
        "task_detection": last.preferred.task_detection,
        "auc_maxlogit": last.preferred.auc_maxlogit,
        "auc_msp": last.preferred.auc_msp,
        "forgetting": forgetting(history),
        "average_incremental_til": average_incremental(history, lambda e: e.til),
        "average_incremental_cil": average_incremental(history, lambda e: e.preferred.cil),
        "parameters": method.n_parameters(),
        "memory_bytes": method.memory_bytes,
        "passes": sum(passes) if len(passes) == len(results) else None,
        "allowance": allowance,
        "minutes": sum(result.minutes for result in results),
        "cpu_minutes": sum(result.cpu_minutes for result in results),
        "peak_memory_gb": round((machine.peak_memory_bytes() or 0) / 1e9, 2),
    }
