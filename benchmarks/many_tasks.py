"""Fifty tasks, one after another, with and without growth: accuracy, units and time per task.

The data set has ten digits, so classes are used again under a fixed permutation of the pixels, another one for every
five tasks: a permuted 3 is a class of its own, which the model has never seen and must tell from all others. The
network is small and soon full. Both runs are folders in `--runs`: an interrupted benchmark continues where it stopped.

python -m benchmarks.many_tasks [--tasks 50] [--seed 0] [--runs runs/many-tasks] [--out results] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from matplotlib import pyplot as plt

from clom import machine
from clom.data.formats import read_digits
from clom.data.images import Images
from clom.data.stream import Stream, Task, split
from clom.experiments.config import resolve
from clom.experiments.run import RunResult, execute
from clom.experiments.task_result import TaskResult
from clom.files import write_atomically
from clom.learning.loop import generator
from clom.reporting.figures.style import BLUE, ORANGE, STYLE, panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROWTH = {"off": ORANGE, "auto": BLUE}
SETTINGS: dict[str, Any] = {
    "net.channels": [16, 16, 32],
    "net.hidden": 64,
    "memory_per_class": 4,
    "statistics": False,
    "learning.plan.epochs": 30,
    "learning.augmentation.crop": False,  # would mix pixels that are no neighbours
}
LAST = 10
"""Tasks at the end whose mean accuracy is printed beside that of all."""


def permuted_digits(n_tasks: int, seed: int) -> Stream:
    """Two digits a task; every five tasks have all ten, under a permutation of their own."""
    digits = split(read_digits(), [2] * 5, train_per_class=80, test_per_class=30, validation=0.1)
    tasks, tests = list[Task](), list[Images]()
    for number in range(n_tasks):
        use, plain = number // 5, digits[number % 5]
        order = torch.randperm(64, generator=generator(seed, "permutation", use))
        names = tuple(f"{name} under permutation {use + 1}" for name in plain.class_names)
        train, validation = permuted(plain.train, order), permuted(plain.validation, order)
        tasks.append(Task(f"task {number + 1}", names, train, validation))
        tests.append(permuted(digits.tests[number % 5], order))
    return Stream("permuted digits", tasks, tests)


def permuted(images: Images, order: torch.Tensor) -> Images:
    return Images(images.pixels.flatten(2)[:, :, order].view_as(images.pixels), images.labels)


def run(growth: str, n_tasks: int, seed: int, folder: Path, changes: dict[str, Any]) -> RunResult:
    settings = SETTINGS | ({} if growth == "off" else {"attention.growth": growth}) | changes
    config = resolve("digits-5t", "clom", "cpu", seed, settings)

    def say(result: TaskResult, total: int) -> None:
        found = result.evaluation
        used = ", ".join(f"{group} {share:.0%} of {result.units[group]}" for group, share in result.capacity.items())
        print(
            f"growth {growth}, {found.n_tasks} of {total}: TIL {found.til:.1%}, CIL {found.preferred.cil:.1%}, "
            f"{60 * result.cpu_minutes:.1f} core seconds; {used}",
            flush=True,
        )

    return execute(config, permuted_digits(n_tasks, seed), folder, on_task=say)


def summary(result: RunResult) -> dict[str, Any]:
    """What the page and the picture show."""
    tasks, last = result.tasks, result.tasks[-1].evaluation
    return {
        "til": last.til,
        "til_last": mean(last.til_by_task[-LAST:]),
        "cil": last.preferred.cil,
        "cil_last": mean(last.preferred.cil_by_task[-LAST:]),
        "task_detection": last.preferred.task_detection,
        "parameters": result.summary["parameters"],
        "core_minutes": result.summary["cpu_minutes"],
        "til_by_task": last.til_by_task,
        "cil_after_task": [task.evaluation.preferred.cil for task in tasks],
        "seconds_by_task": [60 * task.cpu_minutes for task in tasks],
        "capacity": {group: [task.capacity[group] for task in tasks] for group in tasks[-1].capacity},
        "units": {group: [task.units[group] for task in tasks] for group in tasks[-1].units},
    }


# --- picture and page ------------------------------------------------------------------------------------------------


def draw(found: dict[str, dict[str, Any]], out: Path) -> list[Path]:
    with plt.rc_context(STYLE):
        figure, axes = panels(4, 3.6, 2.7, across=2)
        for growth, result in found.items():
            layer = next(iter(result["units"]))
            smooth = [mean(result["til_by_task"][max(0, at - 4) : at + 1]) for at in range(len(result["til_by_task"]))]
            used = zip(result["capacity"][layer], result["units"][layer], strict=True)
            _line(axes[0], growth, [100 * value for value in smooth], "TIL of the last five tasks (%)")
            _line(axes[1], growth, [100 * value for value in result["cil_after_task"]], "CIL over all tasks so far (%)")
            _line(axes[2], growth, [share * units for share, units in used], f"units of {layer} in use")
            axes[2].plot(range(1, len(smooth) + 1), result["units"][layer], color=GROWTH[growth], ls=":", lw=1)
            _line(axes[3], growth, result["seconds_by_task"], "core seconds of a task")
        for axis in axes[2:]:
            axis.set_ylim(bottom=0)
        axes[2].set_title("dotted: units that exist", fontsize=8)
        axes[1].legend(frameon=False)
        return save(figure, out, "many-tasks")


def _line(axis: Axes, growth: str, values: Sequence[float], label: str) -> None:
    style = "-" if growth == "off" else "--"
    axis.plot(range(1, len(values) + 1), values, color=GROWTH[growth], ls=style, label=f"growth: {growth}")
    axis.set(xlabel="tasks learned", ylabel=label)


def page(found: dict[str, dict[str, Any]], seed: int) -> str:
    n_tasks = len(next(iter(found.values()))["til_by_task"])
    lines = [
        f"# {n_tasks} tasks",
        "",
        f"CLOM on {n_tasks} tasks of two digits (8 x 8 pixels), every five tasks under another permutation of the",
        f"pixels, seed {seed}. The network starts with 16-16-32 channels and 64 hidden units. Accuracies in percent,",
        "of a single seed; growth is paid for with parameters and time.",
        "",
        "![accuracy, units and time per task](many-tasks.svg)",
        "",
        f"| growth | TIL | TIL, last {LAST} | CIL | CIL, last {LAST} | TaskDR | parameters | core minutes | units |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for growth, result in found.items():
        shares = (f"{100 * result[key]:.1f}" for key in ("til", "til_last", "cil", "cil_last", "task_detection"))
        units = ", ".join(
            f"{group} {counts[-1]} ({result['capacity'][group][-1]:.0%} used)"
            for group, counts in result["units"].items()
        )
        size = f"{result['parameters'] / 1e6:.2f} M | {result['core_minutes']:.1f}"
        lines.append(f"| {growth} | {' | '.join(shares)} | {size} | {units} |")
    source = "Made by `python -m benchmarks.many_tasks`; the numbers are in `many-tasks.json`."
    return "\n".join([*lines, "", source, ""])


def main(arguments: Sequence[str] | None = None, changes: dict[str, Any] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/many-tasks"), help="folder for the two runs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture and the numbers")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    found = {}
    for growth in GROWTH:
        folder = options.runs / f"{options.tasks}-tasks-seed{options.seed}-growth-{growth}"
        found[growth] = summary(run(growth, options.tasks, options.seed, folder, changes or {}))
    options.out.mkdir(parents=True, exist_ok=True)
    written = {"tasks": options.tasks, "seed": options.seed, "growth": found}
    write_atomically(options.out / "many-tasks.json", (json.dumps(written, indent=1) + "\n").encode())
    write_atomically(options.out / "many-tasks.md", page(found, options.seed).encode())
    for path in draw(found, options.out):
        print(path)


if __name__ == "__main__":
    main()
