"""Run the benchmarks that have limits and write results/benchmarks.json and results/benchmarks.md.

python -m benchmarks [--quick] [--only step,inference] [--out results] [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import calibration, checkpoints, devices, inference, predictors, report, runtimes, step, storage
from benchmarks.measure import Figure
from clom import machine
from clom.testing.simulated_device import simulated_device

BENCHMARKS: dict[str, Callable[[bool], list[Figure]]] = {
    "step": step.figures,
    "inference": inference.figures,
    "runtimes": runtimes.figures,
    "predictors": predictors.figures,
    "calibration": calibration.calibration_figures,
    "auc": calibration.auc_figures,
    "memory": storage.memory_figures,
    "loading": storage.loading_figures,
    "checkpoints": checkpoints.figures,
    "precision": devices.precision_figures,
    "waits": devices.waiting_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small networks and few rounds, as a smoke test")
    parser.add_argument("--only", type=names, default=list(BENCHMARKS), help=f"some of {','.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the two files")
    parser.add_argument("--threads", type=int, help="by default one per core")
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    simulated_device()  # before the first gradient: torch counts devices then
    started = time.monotonic()
    figures: list[Figure] = []
    for name in options.only:
        found = BENCHMARKS[name](options.quick)
        print(f"{name}, {time.monotonic() - started:.0f} s since the start")
        for figure in found:
            print(f"  {figure.group}: {figure.name} = {report.measured(figure)} {figure.verdict}")
        figures += found
    for path in report.write(options.out, figures, (time.monotonic() - started) / 60, options.quick):
        print(path)
    missed = [figure for figure in figures if figure.verdict not in ("", "PASS")]
    print(f"{sum(figure.limit is not None for figure in figures) - len(missed)} limits kept, {len(missed)} missed")


def names(text: str) -> list[str]:
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return wanted


if __name__ == "__main__":
    main()
