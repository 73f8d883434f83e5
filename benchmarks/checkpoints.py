"""The cost of checkpoints within a task: one epoch of `mnist-5t --budget cpu`, with and without them.

Both alternate, and CPU time is compared, which is independent of other load on the machine. The time to save and sync
a checkpoint to disk is measured separately.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.measure import Figure, figure, ratios, scaled
from benchmarks.models import random_task, subject
from clom.data.stream import Task
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.methods.families.base import Method
from clom.storage.checkpoints import SECONDS, CheckpointFolder

LIMIT = 0.02


def figures(quick: bool = False) -> list[Figure]:
    task = random_task(subject("MNIST net", quick), 64 if quick else 1200)
    plain: list[float] = []
    kept: list[float] = []
    shares: list[float] = []
    learn_once(task, None, quick)  # fills caches and the allocator
    with tempfile.TemporaryDirectory() as place:
        for number in range(1 if quick else 4):
            plain.append(learn_once(task, None, quick))
            folder = CheckpointFolder(Path(place) / str(number), 0, "benchmark")
            started = time.monotonic()
            kept.append(learn_once(task, folder, quick))
            shares.append(folder.saving / (time.monotonic() - started))
    name = f"mnist-5t --budget cpu, every {SECONDS:.0f} s"
    extra = [ratio - 1 for ratio in ratios(kept, plain)]
    return [
        figure("checkpoints", f"{name}: more processor time", scaled(extra, 100), "%", at_most=100 * LIMIT),
        figure(
            "checkpoints", f"{name}: share of the time spent on saving", scaled(shares, 100), "%", at_most=100 * LIMIT
        ),
    ]


def learn_once(task: Task, folder: CheckpointFolder | None, quick: bool) -> float:
    """CPU seconds of learning a task from scratch."""
    method = make(task, quick)
    started = time.process_time()
    method.learn(task, TrainingContext(checkpoints=folder))
    return time.process_time() - started


def make(task: Task, quick: bool) -> Method:
    shape = tuple(task.train.pixels.shape[1:])
    overrides = {"learning.plan.epochs": 1}
    return resolve("mnist-5t", "clom", "smoke" if quick else "cpu", overrides=overrides).make_method(shape)
