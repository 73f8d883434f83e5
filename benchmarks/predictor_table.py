"""Task predictors on finished runs: TIL, TaskDR and CIL, and how unknown images are told from known ones.

python -m benchmarks.predictor_table RUN RUN ... [--out results/predictors.md]

Every run must have been through `clom scores`. Runs that differ in the seed alone are one column: mean and deviation.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]
Groups = dict[str, list[Report]]


def read_reports(runs: Sequence[Path]) -> Groups:
    """The reports of all runs, by experiment and method."""
    groups: Groups = {}
    for run in runs:
        path = run / "scores.json"
        if not path.exists():
            raise SystemExit(f"{path} does not exist: run clom scores {run} first.")
        report = json.loads(path.read_text(encoding="utf-8"))
        groups.setdefault(f"{report['experiment']}, {report['method']}", []).append(report)
    return groups


def accuracy_table(reports: Sequence[Report]) -> Iterator[str]:
    """One experiment and method; predictors that keep samples come last."""
    yield "| predictor | samples | CIL, held out | TaskDR | CIL | kB kept besides samples |"
    yield "|---|---|--:|--:|--:|--:|"
    for name in sorted(reports[0]["predictors"], key=lambda name: _keeps_samples(reports[0], name)):
        found = [report["predictors"][name] for report in reports]
        cells = [
            _spread(found, lambda result: result["validation"] and result["validation"]["cil"]),
            _spread(found, lambda result: result["test"]["task_detection"]),
            _spread(found, lambda result: result["test"]["cil"]),
            f"{statistics.fmean(result['statistics_bytes'] for result in found) / 1000:.0f}",
        ]
        samples = "yes" if _keeps_samples(reports[0], name) else "no"
        yield f"| `{name}` | {samples} | {' | '.join(cells)} |"


def unknown_table(reports: Sequence[Report]) -> Iterator[str]:
    """AUROC and FPR95 of the highest score of all tasks against other data sets."""
    others = list(reports[0]["external"])
    yield "| predictor | " + " | ".join(f"{other}: AUROC | FPR95" for other in others) + " |"
    yield "|---|" + "--:|" * (2 * len(others))
    for name in reports[0]["predictors"]:
        found = [report["predictors"][name]["external"] for report in reports]
        cells = [
            _spread(found, lambda result, other=other, figure=figure: result[other][figure])  # type: ignore[misc]
            for other in others
            for figure in ("auc", "fpr95")
        ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def _keeps_samples(report: Report, name: str) -> bool:
    return bool(report["predictors"][name]["sample_bytes"])


def _spread(results: Sequence[Any], figure: Callable[[Any], float | None]) -> str:
    values = [100 * value for result in results if (value := figure(result)) is not None]
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def page(groups: Groups) -> str:
    lines = [
        "# Task predictors on the same networks",
        "",
        "`python -m benchmarks.predictor_table RUN ...`, after `clom scores` of each run; in percent, mean and",
        "deviation over the seeds. *Held out*: validation images that are not stored, by which predictors are",
        "chosen. All other figures are those of the test images.",
    ]
    for title, reports in sorted(groups.items()):
        seeds = ", ".join(str(report["seed"]) for report in reports)
        til = _spread(reports, lambda report: float(report["til"]))
        lines += ["", f"## {title} (seeds {seeds}; TIL {til})", "", *accuracy_table(reports)]
        if reports[0]["external"]:
            lines += ["", *unknown_table(reports)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictor_table", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/predictors.md"))
    options = parser.parse_args(arguments)
    options.out.write_text(page(read_reports(options.runs)), encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
