"""Real photos: CLOM with adapters against class statistics of the same frozen features, and against joint training.

Two tasks, flowers and then ants and bees, some photos of each class to learn from and the rest to test. Prints CIL of
every seed in percent. Not part of `make bench`: it needs the photos.

python -m benchmarks.photos FOLDER [--seeds 0,1,2] [--per-class 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clom import machine
from clom.data.folders import Pictures, read_folder
from clom.data.images import Images
from clom.data.stream import Task
from clom.learning.heads import HeadSettings, solve_head
from clom.learning.loop import generator
from clom.methods.families.base import Blocks, Method
from clom.methods.families.frozen import FrozenMethod
from clom.methods.families.masked import MaskedMethod
from clom.photos.presets import new_method

FOLDERS = (("flowers5",), ("ants_bees/train", "ants_bees/val"))
HELD = 0.2  # held-out share of the training photos, as in `clom learn`
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
IMAGENET = (
    "Ants and bees, and daisies, are classes of ImageNet, which the features were trained on: not unseen classes."
)


@dataclass(frozen=True)
class Photos:
    """One task's photos with their frozen features in four rotations, `[photos, 4, d]`, computed once for all seeds."""

    class_names: tuple[str, ...]
    images: Images
    features: Tensor

    def rows(self, seed: int, per_class: int) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the training, validation and test photos."""
        train, held, test = [], [], []
        count = round(HELD * per_class)
        for label, name in enumerate(self.class_names):
            rows = (self.images.labels == label).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=generator(seed, "photos", name))]
            held.append(rows[:count])
            train.append(rows[count:per_class])
            test.append(rows[per_class:])
        return torch.cat(train), torch.cat(held), torch.cat(test)


@dataclass(frozen=True)
class Outcome:
    """Percent of the test photos of all tasks, and CPU seconds of learning each task."""

    cil: float
    til: float
    seconds: tuple[float, ...] = ()


def read(folder: Path, places: Sequence[str], method: MaskedMethod) -> Photos:
    parts: list[Pictures] = [read_folder(folder / place, method.image_shape[-1]) for place in places]
    images = Images.join([part.images for part in parts])
    return Photos(parts[0].class_names, images, method.stored_form(images.pixels))


def learned(name: str, photos: Sequence[Photos], seed: int, per_class: int) -> tuple[Method, tuple[float, ...]]:
    """A system after all tasks. Class statistics need no held-out photos and use these for training, too."""
    method, taken = new_method(name, seed=seed), []
    for number, task in enumerate(photos, start=1):
        train, held, _ = task.rows(seed, per_class)
        if isinstance(method, FrozenMethod):
            train = torch.cat([train, held])
        started = time.process_time()
        method.learn(Task(f"task {number}", task.class_names, task.images[train], task.images[held]))
        taken.append(time.process_time() - started)
    return method, tuple(taken)


def measure(name: str, photos: Sequence[Photos], seed: int, per_class: int) -> Outcome:
    method, taken = learned(name, photos, seed, per_class)
    calibrate = method.calibration
    tests = [task.rows(seed, per_class)[2] for task in photos]
    blocks = [calibrate(_blocks(method, task.features[test])) for task, test in zip(photos, tests, strict=True)]
    labels = [task.images.labels[test] for task, test in zip(photos, tests, strict=True)]
    return outcome(blocks, labels, taken)


def joint_probe(photos: Sequence[Photos], seed: int, per_class: int) -> Outcome:
    """Logistic regression on unrotated photos of all classes at once; its L2 penalty is chosen on held-out photos."""
    rows = [task.rows(seed, per_class) for task in photos]
    offsets = torch.tensor([0] + [len(task.class_names) for task in photos]).cumsum(0)

    def gather(part: int) -> tuple[Tensor, Tensor]:
        features = [task.features[which[part], 0] for task, which in zip(photos, rows, strict=True)]
        labels = [t.images.labels[w[part]] + o for t, w, o in zip(photos, rows, offsets, strict=False)]
        return torch.cat(features), torch.cat(labels)

    (train, labels), (held, truth) = gather(0), gather(1)
    n = int(offsets[-1])

    def right(l2: float) -> float:
        answers = solve_head(train, labels, n, HeadSettings(l2=l2))(held).argmax(1)
        return float((answers == truth).double().mean())

    best = HeadSettings(l2=max(PENALTIES, key=right))
    head = solve_head(torch.cat([train, held]), torch.cat([labels, truth]), n, best)
    blocks, own = [], []
    for task, which in zip(photos, rows, strict=True):
        scores = head(task.features[which[2], 0]).detach()
        blocks.append(list(scores.tensor_split(offsets[1:-1].tolist(), dim=1)))
        own.append(task.images.labels[which[2]])
    return outcome(blocks, own)


def _blocks(method: Method, features: Tensor) -> Blocks:
    if isinstance(method, FrozenMethod):
        return [method.scores(features[:, 0], method.rows(task)) for task in range(len(method.tasks))]
    return method.blocks(features)


def outcome(blocks: Sequence[Blocks], labels: Sequence[Tensor], seconds: tuple[float, ...] = ()) -> Outcome:
    cil, til = [], []
    for number, (of_task, right) in enumerate(zip(blocks, labels, strict=True)):
        offset = sum(block.shape[1] for block in of_task[:number])
        cil.append(torch.cat(of_task, 1).argmax(1) == right + offset)
        til.append(of_task[number].argmax(1) == right)
    percent = [100 * float(torch.cat(part).double().mean()) for part in (cil, til)]
    return Outcome(percent[0], percent[1], seconds)


def line(name: str, outcomes: Sequence[Outcome]) -> str:
    seconds = " ".join(f"{max(of_task):.0f}" for of_task in zip(*(o.seconds for o in outcomes), strict=True))
    each = ", ".join(f"{o.cil:.1f}" for o in outcomes)
    cil, til = (statistics.fmean(values) for values in zip(*((o.cil, o.til) for o in outcomes), strict=True))
    return f"| {name} | {cil:.1f} | {each} | {til:.1f} | {seconds} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photos", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="holds flowers5 and ants_bees")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--per-class", type=int, default=40, help="photos of each class to learn from")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    method = new_method()
    assert isinstance(method, MaskedMethod)
    photos = [read(options.folder, places, method) for places in FOLDERS]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found = {
        name: [measure(name, photos, seed, options.per_class) for seed in seeds] for name in ("ncm", "slda", "clom")
    }
    found["joint probe"] = [joint_probe(photos, seed, options.per_class) for seed in seeds]
    print(f"Flowers, then ants and bees; {options.per_class} photos of each class to learn from, the rest to test.")
    print(IMAGENET)
    print("| system | CIL %, mean | CIL % of each seed | TIL %, mean | processor seconds of each task, at most |")
    print("|---|---|---|---|---|")
    for name, outcomes in found.items():
        print(line(name, outcomes))


if __name__ == "__main__":
    main()
