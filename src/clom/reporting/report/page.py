"""One or more runs as a self-contained HTML page: no network access or other files, and complete without scripts.

This module compares runs with each other and with the paper; `sections` prepares the content for a single run, `svg`
draws the charts, `examples` picks images, and `templates/` hold the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from clom.errors import UserError
from clom.experiments.analysis.finished_run import FinishedRun, read_run
from clom.files import write_atomically
from clom.methods.registry import method_label
from clom.reporting.paper.numbers import all_systems, reported
from clom.reporting.report.sections import RunPage, decimal, percent, points, without_folders
from clom.reporting.report.svg import Charts


@dataclass(frozen=True)
class Written:
    """The page written, and the data sets whose images were not found."""

    path: Path
    n_bytes: int
    without_images: list[str]


def write_report(
    folders: Sequence[Path], path: Path, data: Path | None = None, device: torch.device | None = None
) -> Written:
    """Read finished runs and write the page. `data` is a folder with data sets, for the example images, which are
    scored on `device`."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: --out names the page's file, for example {path / 'report.html'}.")
    runs = [read_run(folder, device) for folder in dict.fromkeys(folders)]
    pages, without = [], []
    charts = Charts()
    for number, (run, name) in enumerate(zip(runs, _names(runs), strict=True), start=1):
        pages.append(RunPage(run, name, f"run-{number}", charts, data))
        if not pages[-1].galleries:
            without.append(run.config.data.name)
    content = render(pages, charts).encode()
    write_atomically(path, content)
    return Written(path, len(content), list(dict.fromkeys(without)))


def render(pages: Sequence[RunPage], charts: Charts) -> str:
    environment = Environment(
        loader=PackageLoader("clom.reporting.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "decimal": decimal}
    style, script = (Markup(environment.get_template(name).render()) for name in ("style.css", "script.js"))
    comparison = Comparison(pages, charts)
    content = {"pages": pages, "comparison": comparison, "style": style, "script": script}
    return environment.get_template("report.html.jinja").render(content)


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    """Short unique names."""
    plain = []
    for run in runs:
        config = run.config
        changed = ", ".join(f"{name}={value}" for name, value in without_folders(config.overrides).items())
        text = f"{config.experiment}, {method_label(config.method)}, {config.budget}, seed {config.seed}"
        plain.append(f"{text}, {changed}" if changed and len(changed) <= 60 else text)
    return [
        name if plain.count(name) == 1 else f"{name} ({run.folder.resolve().name})"
        for name, run in zip(plain, runs, strict=True)
    ]


# --- all runs, and the paper ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperRow:
    """One figure of one run and of the paper."""

    run: str
    figure: str
    ours: float
    paper: float
    std: float | None
    unit: str


_PAPER_FIGURES = {
    "til": "TIL",
    "cil": "CIL",
    "average_incremental_til": "average incremental TIL",
    "average_incremental_cil": "average incremental CIL",
    "task_detection": "task detection",
    "auc_maxlogit": "AUC",
    "parameters": "parameters",
}


class Comparison:
    """Comparison of runs with each other and with the paper."""

    def __init__(self, pages: Sequence[RunPage], charts: Charts) -> None:
        self.curves: list[tuple[str, Markup]] = []
        self.paper_charts: list[tuple[str, Markup]] = []
        self.paper_rows = [row for page in pages for row in _paper_rows(page)]
        for experiment in dict.fromkeys(page.config.experiment for page in pages):
            runs = {page.name: page for page in pages if page.config.experiment == experiment}
            title = next(iter(runs.values())).title
            if len(runs) > 1:
                self.curves.append((title, charts.runs({name: page.run.history for name, page in runs.items()})))
            if systems := all_systems(experiment):
                ours = {_beside(page): 100 * page.last.preferred.cil for page in runs.values()}
                label = f"CIL of the paper's systems and of these runs on {experiment}"
                self.paper_charts.append((title, charts.beside_paper(systems, ours, label)))


def _beside(page: RunPage) -> str:
    """A run's name without its experiment."""
    return "this run: " + page.name.removeprefix(f"{page.config.experiment}, ")


def _paper_rows(page: RunPage) -> list[PaperRow]:
    found = reported(page.config.experiment, page.config.method)
    rows = []
    for figure, label in _PAPER_FIGURES.items():
        if figure in found:
            factor, unit = (1e-6, "million") if figure == "parameters" else (100, "%")
            value = found[figure]
            rows.append(PaperRow(page.name, label, factor * page.summary[figure], value.mean, value.std, unit))
    return rows
