"""CIL inference with T tasks: each task's compact network against the full network with gates, half of them open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import Figure, figure, interleaved, ratios, scaled, seconds
from benchmarks.models import Masked, Subject, random_pixels, subject, untrained
from clom.methods.clom import Clom

TASKS = (1, 5, 10, 20)  # the second has a separate limit
GROWTH = 1.10  # four times the tasks may take 4.4 times as long


@dataclass(frozen=True)
class Case:
    """`images` are timed in each round; predictions are compared on `compared` images."""

    name: str
    images: int
    compared: int
    rounds: int
    limit: float
    """The required throughput relative to the masked network at five tasks."""


CASES = (Case("MNIST net", 64, 512, 9, 3.0), Case("ResNet-18, width 64", 16, 64, 5, 3.0))


def figures(quick: bool = False) -> list[Figure]:
    found: list[Figure] = []
    for case in CASES:
        images, compared, rounds = (2, 8, 2) if quick else (case.images, case.compared, case.rounds)
        tasks = (1, 2, 4) if quick else TASKS
        what = subject(case.name, quick)
        group = f"answering, {case.name}, {images} images"
        found += _speed(group, what, images, rounds, tasks, case.limit)
        found.append(_same_predictions(group, what, compared, tasks[1]))
        if case is CASES[0] or not quick:
            found += _peaks(group, case.name, images, tasks, quick)
    return found


def _speed(group: str, what: Subject, images: int, rounds: int, tasks: tuple[int, ...], limit: float) -> list[Figure]:
    pixels = random_pixels(what, images)
    models = {"cut": untrained(what, max(tasks)), "masked": untrained(what, max(tasks), Masked)}
    cutting = [seconds(lambda task=task: models["cut"].block(pixels[:1], task)) for task in range(max(tasks))]  # type: ignore[misc]
    variants = {f"{kind} {n}": _answering(model, pixels, n) for n in tasks for kind, model in models.items()}
    times = interleaved(variants, rounds)
    found = []
    for n in tasks:
        gain = ratios(times[f"masked {n}"], times[f"cut {n}"])
        wanted = limit if n == tasks[1] else None
        found.append(figure(group, f"T = {n}: cut / masked, images per second", gain, "x", at_least=wanted))
        for kind in models:
            speed = [images / taken for taken in times[f"{kind} {n}"]]
            found.append(figure(group, f"T = {n}: {kind}", speed, "images/s"))
    few, many = tasks[1], tasks[-1]
    growth = ratios(times[f"cut {many}"], times[f"cut {few}"])
    found.append(figure(group, f"time of T = {many} / T = {few}, cut", growth, "x", at_most=GROWTH * many / few))
    once = "once per task, with the first answer"
    found.append(figure(group, "cutting a task's network out", scaled(cutting, 1000), "ms", note=once))
    return found


def predict(model: Clom, pixels: Tensor, n_tasks: int) -> Tensor:
    """Eq. 2 over the first tasks of a model, as if it had learned no more."""
    return torch.cat(model._blocks(pixels, range(n_tasks)), 1).argmax(1)


def _answering(model: Clom, pixels: Tensor, n_tasks: int) -> Callable[[], Tensor]:
    return lambda: predict(model, pixels, n_tasks)


def _same_predictions(group: str, what: Subject, images: int, n: int) -> Figure:
    pixels = random_pixels(what, images, seed=1)
    both = [predict(untrained(what, n, kind), pixels, n) for kind in (Clom, Masked)]
    different = float((both[0] != both[1]).sum())
    return figure(group, f"T = {n}: different predictions on {images} images", [different], "images", at_most=0)


def _peaks(group: str, name: str, images: int, tasks: tuple[int, ...], quick: bool) -> list[Figure]:
    """Peak memory, in separate processes: within one, the allocator keeps freed memory."""
    found = []
    for kind in ("cut", "masked"):
        arguments = [name, kind, str(images), ",".join(map(str, tasks)), str(torch.get_num_threads())]
        command = [sys.executable, "-m", "benchmarks.peak", *arguments, *(["--quick"] if quick else [])]
        root = Path(__file__).resolve().parents[1]
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        for n, peak in json.loads(answer.stdout).items():
            note = "model and activations"
            found.append(figure(group, f"T = {n}: peak memory, {kind}", [peak / 1e6], "MB", note=note))
    return found
