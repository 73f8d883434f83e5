"""Evaluate a recipe on held-out training images, so that settings can be chosen without test images.

A fifth of an experiment's training images of each class is held out, the rest is trained on. Prints, after each task,
what a run would print for its test images. Source of the figures in results/cifar10.md.

python -m benchmarks.held_out cifar10-5t --data FOLDER [--method clom] [--tasks 3] [--alone 2] [--set NAME=VALUE ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from clom import machine
from clom.data.images import DataSet
from clom.data.sources import DataSettings
from clom.data.stratified import hold_out
from clom.data.stream import Stream
from clom.evaluation.metrics import Evaluation, evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import RunConfig, parse_overrides, resolve

HELD = 5  # one in this many images is held out
DRAW = 5  # the seed of the hold-out split, the same for every recipe


def held_out(data: DataSettings, folder: Path | None, seed: int) -> Stream:
    """The experiment's tasks with held-out training images as test images."""
    full = data.load(folder)
    randomness = torch.Generator().manual_seed(DRAW)
    n_classes = len(full.class_names)
    drawn = hold_out(full.train.labels, n_classes, lambda n: n // HELD, randomness, data.train_per_class)
    learned, asked = (full.train[torch.cat([rows[part] for rows in drawn])] for part in (0, 1))
    kept = DataSet(full.name, full.class_names, learned, asked)
    return data.model_copy(update={"train_per_class": None, "test_per_class": None}).tasks_of(kept, seed)


def learn(config: RunConfig, stream: Stream) -> list[Evaluation]:
    """Print the results on held-out images after each task."""
    method, book, started = config.make_method(stream.image_shape), Scorebook(stream.tests), time.process_time()
    after = []
    for number, task in enumerate(stream, start=1):
        method.learn(task)
        book.update(method)
        found = evaluate(book, method.calibrations())
        after.append(found)
        by_task = " ".join(f"{100 * share:.1f}" for share in found.til_by_task)
        print(
            f"after {number}: TIL {100 * found.til:.1f} ({by_task})   CIL {100 * found.preferred.cil:.1f}   "
            f"AUC {100 * found.preferred.auc_maxlogit:.1f}   {(time.process_time() - started) / 60:.1f} core minutes",
            flush=True,
        )
    return after


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A recipe judged by training images that are held out.")
    parser.add_argument("experiment")
    parser.add_argument("--method", default="clom")
    parser.add_argument("--budget", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", type=int, help="number of tasks to learn, from the first")
    parser.add_argument("--alone", type=int, help="only this task, counted from 1, in a fresh network")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="overrides")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    config = resolve(
        options.experiment, options.method, options.budget, options.seed, parse_overrides(options.overrides)
    )
    stream = held_out(config.data, options.data, options.seed)
    learn(config, stream[options.alone - 1 : options.alone] if options.alone else stream[: options.tasks])


if __name__ == "__main__":
    main()
