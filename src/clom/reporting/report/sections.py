"""The content of the report for one run: formatted numbers, tables and charts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml
from markupsafe import Markup

from clom.evaluation.metrics import auc_grid, max_logit
from clom.experiments.analysis.finished_run import FinishedRun
from clom.experiments.catalogue import experiment_names, read_experiment
from clom.experiments.config import RunConfig
from clom.experiments.grid import set_options
from clom.experiments.task_result import growth
from clom.methods.registry import method_label, method_title
from clom.ood.rejection import FALSE_REJECTION
from clom.reporting.labels import work_label
from clom.reporting.report import examples
from clom.reporting.report.examples import short
from clom.reporting.report.svg import Charts

_FULL = 0.98  # share of a layer's units in use above which it counts as full


# --- formatting ------------------------------------------------------------------------------------------------------


def percent(fraction: float) -> str:
    return decimal(100 * fraction)


def decimal(value: float) -> str:
    """One decimal, never "-0.0"."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def points(difference: float) -> str:
    """A difference of percentages with its sign."""
    text = decimal(difference)
    return text if text.startswith("−") or text == "0.0" else f"+{text}"


def without_folders(value: Any) -> Any:
    """Reduce absolute paths to file names, because pages are shared."""
    if isinstance(value, dict):
        return {name: without_folders(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    if isinstance(value, str):
        for kind in (PurePosixPath, PureWindowsPath):
            if kind(value).is_absolute():
                return kind(value).name
    return value


def title_of(config: RunConfig) -> str:
    """The experiment's title, or its name if it no longer exists."""
    if config.title is not None:
        return config.title
    return read_experiment(config.experiment).title if config.experiment in experiment_names() else config.experiment


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    text: str
    level: float
    """Colour intensity from 0 to 1."""


@dataclass(frozen=True)
class HeatTable:
    """A table of percentages with coloured cells."""

    caption: str
    rows_are: str
    columns_are: str
    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]


def _cells(values: Iterable[float], lowest: float = 0.0, width: int | None = None) -> list[Cell | None]:
    """Cells for fractions, uncoloured up to `lowest`, padded with None to `width`."""
    made: list[Cell | None] = [
        Cell(f"{100 * value:.0f}", max(0.0, min(1.0, (value - lowest) / (1 - lowest)))) for value in values
    ]
    return made + [None] * ((width or 0) - len(made))


# --- one run ---------------------------------------------------------------------------------------------------------


class RunPage:
    """The content of the page for one run."""

    def __init__(self, run: FinishedRun, name: str, anchor: str, charts: Charts, data: Path | None) -> None:
        self.run, self.name, self.anchor = run, name, anchor
        self.config, self.summary, self.last = run.config, run.summary, run.last
        self.method = method_label(run.config.method)
        self.title = title_of(run.config)
        self.n_tasks = len(run.tasks)
        self.n_classes = sum(map(len, run.class_names))
        self.numbers = [str(task + 1) for task in range(self.n_tasks)]
        self.task_names = [f"{task + 1}: {short(names)}" for task, names in enumerate(run.class_names)]
        self.lost = [run.history[task].til_by_task[task] - self.last.til_by_task[task] for task in range(self.n_tasks)]
        self.learning = charts.learning(run.history)
        self.settings = yaml.safe_dump(without_folders(run.config.model_dump(mode="json")), sort_keys=False)
        self._scores(charts)
        self.capacity = charts.capacity(run.tasks) if run.tasks[-1].capacity else None
        self._examples(charts, data)

    @property
    def best_predictor(self) -> str | None:
        """The task predictor with the highest CIL on validation images, if `clom scores` compared them."""
        compared = (self.run.scores or {}).get("predictors", {})
        judged = {name: result["validation"]["cil"] for name, result in compared.items() if result["validation"]}
        return max(judged, key=lambda name: judged[name], default=None)

    @property
    def lead(self) -> str:
        """A summary in plain words."""
        return (
            f"{self.n_classes} classes were learned as {self.n_tasks} tasks, one after another. Given the task of a "
            f"test image, the model is right {percent(self.last.til)} times out of 100 (TIL); without it, "
            f"{percent(self.last.preferred.cil)} times (CIL). {self.forgetting}"
        )

    @property
    def forgetting(self) -> str:
        if self.n_tasks == 1:
            return "With a single task there is nothing to forget."
        if all(lost == 0 for lost in self.lost):
            return "Nothing was forgotten."
        change = 100 * self.summary["forgetting"]
        word = "lost" if change >= 0 else "gained"
        return f"While later tasks were learned, earlier tasks {word} {abs(change):.1f} points on average."

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Settings, machine and cost of the run."""
        config, summary, environment = self.config, self.summary, self.run.environment
        changed = without_folders(config.overrides)
        counts = sum(len(row[0]) for row in self.run.blocks)
        facts = [
            ("Experiment", f"{config.experiment}: {self.title}"),
            ("Method", method_title(config.method)),
            ("Budget, seed", f"{config.budget}, {config.seed}"),
            ("Changed settings", ", ".join(f"{name} = {value}" for name, value in changed.items()) or "none"),
            ("Test images", f"{counts:,}".replace(",", " ")),
            ("Network", f"{config.net.kind}, {summary['parameters'] / 1e6:.2f} million parameters"),
            ("Samples kept", f"{summary['memory_bytes'] / 1000:.0f} kB" if summary["memory_bytes"] else "none"),
            ("Time", f"{summary['minutes']:.1f} minutes, at most {summary['peak_memory_gb']:.1f} GB of memory"),
            ("Work", work_label(summary) or "not counted"),
            ("Machine", _machine(environment)),
            ("Versions", _versions(environment)),
        ]
        return facts

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands about this run, and what they are for; paths are reduced to file names."""
        config, folder = self.config, self.run.folder.resolve().name
        experiment = config.experiment if config.title is None else f"{config.experiment}.yaml"
        words = ["clom", "run", experiment, "--method", config.method, "--budget", config.budget]
        words += ["--seed", str(config.seed), *set_options(without_folders(config.overrides))]
        return [
            ("Run it again", shlex.join(words)),
            ("Compare OOD scores on it", shlex.join(["clom", "scores", folder])),
        ]

    @property
    def matrix(self) -> HeatTable:
        """TIL of every task (columns) after each task (rows)."""
        lowest = min(0.5, *(min(evaluation.til_by_task) for evaluation in self.run.history))
        rows = [
            (f"after {number}", _cells(evaluation.til_by_task, lowest, self.n_tasks))
            for number, evaluation in enumerate(self.run.history, start=1)
        ]
        return HeatTable("TIL in percent", "tasks learned", "task", self.numbers, rows)

    @property
    def confusion(self) -> HeatTable:
        rows = [
            (name, _cells(row)) for name, row in zip(self.task_names, self.last.preferred.task_confusion, strict=True)
        ]
        return HeatTable("Test images in percent of their task", "true task", "detected task", self.numbers, rows)

    @property
    def fullest(self) -> str:
        """The layer with the least room for new tasks."""
        layer, used = max(self.run.tasks[-1].capacity.items(), key=lambda item: item[1])
        advice = " It is full: later tasks can reuse its units, but hardly add any." if used > _FULL else ""
        return f"The fullest layer is {layer}: {percent(used)}% of its units are in use.{advice}"

    @property
    def growth(self) -> str:
        """The layers that have more units than at the start; empty if there are none."""
        grown = [f"{layer} from {first} to {last}" for layer, (first, last) in growth(self.run.tasks).items()]
        return f"Units were appended before later tasks: {', '.join(grown)}." if grown else ""

    def _scores(self, charts: Charts) -> None:
        """How well each task's model separates its own images from those of other tasks."""
        blocks = self.run.blocks
        grid = auc_grid(blocks, max_logit)
        rows = [(name, _cells(row, 0.5)) for name, row in zip(self.task_names, grid, strict=True)]
        for task, (_, cells) in enumerate(rows):
            cells[task] = None  # own images against themselves
        self.auc = HeatTable("AUC in percent", "model of task", "images of task", self.numbers, rows)
        self.histograms: list[tuple[str, float, Markup]] = []
        for task, names in enumerate(self.run.class_names):
            own = max_logit(blocks[task][task])
            others = [max_logit(blocks[test][task]) for test in range(self.n_tasks) if test != task]
            if others:
                mean = sum(value for test, value in enumerate(grid[task]) if test != task) / len(others)
                groups = {"own images": own, "other tasks' images": _joined(others)}
                label = f"Scores of task {task + 1}'s model for its own images and for those of other tasks"
                self.histograms.append((short(names), mean, charts.histogram(groups, label)))

    def _examples(self, charts: Charts, data: Path | None) -> None:
        run = self.run
        stream = examples.local_stream(run, data)
        lowest = examples.threshold(run, stream)
        self.wanted_rejection = FALSE_REJECTION
        self.galleries: list[examples.Gallery] = []
        self.external_galleries: list[examples.Gallery] = []
        if stream is not None and lowest is not None:
            self.galleries = examples.galleries(run, stream, lowest)
            self.external_galleries = examples.external_galleries(run, stream, data, lowest)
        self.external = None
        if run.external:
            groups = {"test images of all tasks": _joined([examples.best_scores(run, row) for row in run.blocks])}
            groups |= {name: examples.best_scores(run, blocks) for name, blocks in run.external.items()}
            self.external = charts.histogram(groups, "Scores of known and of unknown images", lowest, wide=True)


def _joined(parts: Sequence[Any]) -> Any:
    import torch

    return torch.cat(list(parts))


def _machine(environment: dict[str, Any]) -> str:
    threads = environment.get("threads", "?")
    threads = f"{threads} thread" if threads == 1 else f"{threads} threads"
    gpu = f", {environment['gpu']}" if environment.get("gpu") else ""
    return f"{environment.get('processor', 'unknown processor')}, {threads}{gpu}, {environment.get('system', '')}"


def _versions(environment: dict[str, Any]) -> str:
    packages = {"Python": environment.get("python", "?"), **environment.get("packages", {})}
    revision = [f"revision {environment['commit']}"] if environment.get("commit") else []
    return ", ".join([*(f"{name} {number}" for name, number in packages.items()), *revision])
