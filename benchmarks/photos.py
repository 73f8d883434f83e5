"""Photos: every system for `clom learn` on the same features, joint linear probes, and what is rejected as unknown.

python -m benchmarks.photos FOLDER FOLDER ... [--seeds 0,1,2] [--per-class 40] [--systems experts,slda] [--clom]

Each folder, with one sub-folder per class, is a task; `a+b` joins two folders of the same classes. Some photos of each
class are learned from, as `clom learn` would, and the rest are the test. Prints Markdown: accuracy with mean and
deviation over the seeds, core seconds per task once the features exist, AUROC and rejection of strangers, how often
known photos are rejected at nominal rates, and what photos that are added later are worth. Not part of `make bench`: it
needs the photos.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.joint_probe import joint_probe
from clom import machine
from clom.data.folders import Pictures, read_folder
from clom.data.images import Images
from clom.evaluation.metrics import auc
from clom.learning.loop import generator
from clom.methods.families.base import Method
from clom.methods.families.frozen import FrozenMethod
from clom.nets.pretrained.efficientnet_lite import PretrainedSettings
from clom.nets.pretrained.feature_cache import FeatureCache
from clom.photos.changes.add import extend_method
from clom.photos.predict import Answer, Predictor
from clom.photos.presets import ON_FROZEN_FEATURES, new_method
from clom.photos.teach import learn_pictures

RATES = (0.01, 0.05, 0.1, 0.2)
REJECTED_AT = 0.05


@dataclass(frozen=True)
class Folder:
    """The photos of one task."""

    name: str
    pictures: Pictures

    def split(self, seed: int, per_class: int, without: str | None = None, known: int = 0) -> tuple[Pictures, Images]:
        """The first `per_class` photos of every class but one to learn from, except those that are known already, and
        all further photos of these classes."""
        names = tuple(name for name in self.pictures.class_names if name != without)
        labels, chosen, rest = self.pictures.images.labels, list[Tensor](), list[Tensor]()
        for name in names:
            rows = (labels == self.pictures.class_names.index(name)).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=generator(seed, "photos", name))]
            chosen.append(rows[known:per_class])
            rest.append(rows[per_class:])
        paths = tuple(self.pictures.paths[row] for row in torch.cat(chosen).tolist())
        return Pictures(names, self._images(chosen), paths, ()), self._images(rest)

    def of_class(self, name: str) -> Tensor:
        return self.pictures.images.pixels[self.pictures.images.labels == self.pictures.class_names.index(name)]

    def _images(self, rows: Sequence[Tensor]) -> Images:
        labels = torch.cat([torch.full_like(own, label) for label, own in enumerate(rows)])
        return Images(self.pictures.images.pixels[torch.cat(list(rows))], labels)


@dataclass
class Outcome:
    """Results of one system, one entry per seed."""

    cil: list[float] = field(default_factory=list)
    til: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Core seconds of each task of each seed."""
    near: list[tuple[float, float]] = field(default_factory=list)
    """AUROC and the share rejected, of a class left out of its folder."""
    far: list[tuple[float, float]] = field(default_factory=list)
    """The same of photos of other folders."""
    rejected: dict[float, list[Tensor]] = field(default_factory=dict)
    """Nominal rate -> which known test photos of each seed were rejected."""
    expected: dict[float, list[tuple[float, float]]] = field(default_factory=dict)
    """Nominal rate -> mean and variance of the rate to expect, of each seed."""
    added: list[tuple[float, float]] = field(default_factory=list)
    """CIL after half of the photos, and after the others were added to the same classes."""


class Systems:
    """Makes the systems that are compared; all share the features of a photo."""

    def __init__(self, backbone: str, size: int | None) -> None:
        self.backbone, self.size, self.cache = backbone, size, FeatureCache()

    def make(self, name: str, seed: int) -> Method:
        method = new_method(name, "efficientnet-lite0" if name == "clom" else self.backbone, seed, self.size)
        if isinstance(method, FrozenMethod):
            method.cache = self.cache
        return method


def read_task(text: str, size: int) -> Folder:
    parts = [read_folder(Path(place), size) for place in text.split("+")]
    if len({part.class_names for part in parts}) > 1:
        raise SystemExit(f"The folders of {text} have different classes.")
    images, paths = Images.join([part.images for part in parts]), tuple(path for part in parts for path in part.paths)
    return Folder(Path(text.split("+")[0]).name, Pictures(parts[0].class_names, images, paths, ()))


def measure(outcome: Outcome, method: Method, folders: Sequence[Folder], seed: int, per_class: int) -> None:
    """Accuracy, time and false rejection after all tasks."""
    tests = []
    for number, folder in enumerate(folders, start=1):
        taught, test = folder.split(seed, per_class)
        started = time.process_time()
        learn_pictures(method, taught, f"{folder.name} {number}")
        outcome.seconds.append(time.process_time() - started)
        tests.append(test)
    answers = [answer for test in tests for answer in _answers(method, test.pixels)]
    til = [method.block(test.pixels, number).argmax(1) == test.labels for number, test in enumerate(tests)]
    outcome.cil.append(_accuracy(method, tests))
    outcome.til.append(100 * float(torch.cat(til).double().mean()))
    for rate in RATES:
        rejected = torch.tensor([(answer.familiarity or 0.0) <= rate for answer in answers])
        outcome.rejected.setdefault(rate, []).append(rejected)
        outcome.expected.setdefault(rate, []).append(_expected(method, tests, rate))


def add_photos(outcome: Outcome, method: Method, folders: Sequence[Folder], seed: int, per_class: int) -> None:
    """CIL on the same test photos, before and after half of the photos are added to classes that are known."""
    half = per_class // 2
    for number, folder in enumerate(folders, start=1):
        learn_pictures(method, folder.split(seed, half)[0], f"{folder.name} {number}")
    tests = [folder.split(seed, per_class)[1] for folder in folders]
    before = _accuracy(method, tests)
    for folder in folders:
        extend_method(method, folder.split(seed, per_class, known=half)[0])
    outcome.added.append((before, _accuracy(method, tests)))


def _accuracy(method: Method, tests: Sequence[Images]) -> float:
    """CIL in percent."""
    right = []
    for task, test in zip(method.tasks, tests, strict=True):
        names = [task.class_names[label] for label in test.labels.tolist()]
        found = _answers(method, test.pixels)
        right += [answer.best.class_name == name for answer, name in zip(found, names, strict=True)]
    return 100 * statistics.fmean(right)


def _expected(method: Method, tests: Sequence[Images], rate: float) -> tuple[float, float]:
    """Mean and variance of the rejected share of the test photos: of the thresholds, which are beta-distributed, and
    of drawing the test photos."""
    total = sum(len(test) for test in tests)
    mean = variance = 0.0
    for task, test in zip(method.tasks, tests, strict=True):
        n = len(task.record.belonging) if task.record else 0
        k, share = max(0.5, math.floor(rate * (n + 1) + 1e-9)), len(test) / total
        own = k / (n + 1)
        mean += share * own
        variance += share**2 * (own * (1 - own) / (n + 2) + own * (1 - own) / max(1, len(test)))
    return mean, variance


def strangers(outcome: Outcome, systems: Systems, name: str, folders: Sequence[Folder], seed: int, few: int) -> None:
    """One folder is learned, without one of its classes if it has three or more."""
    for number, folder in enumerate(folders):
        others = torch.cat([other.pictures.images.pixels for at, other in enumerate(folders) if at != number])
        left_out = folder.pictures.class_names if len(folder.pictures.class_names) > 2 else (None,)
        for without in left_out:
            method = systems.make(name, seed)
            taught, test = folder.split(seed, few, without)
            learn_pictures(method, taught, folder.name)
            known = _answers(method, test.pixels)
            if without is not None:
                outcome.near.append(_separation(known, _answers(method, folder.of_class(without))))
            outcome.far.append(_separation(known, _answers(method, others)))


def _answers(method: Method, pixels: Tensor) -> list[Answer]:
    predictor = Predictor(method)
    return [answer for part in torch.split(pixels, 64) for answer in predictor(part, top=1)]


def _separation(known: Sequence[Answer], strange: Sequence[Answer]) -> tuple[float, float]:
    own, other = (torch.tensor([answer.familiarity or 0.0 for answer in answers]) for answers in (known, strange))
    return auc(own, other), float((other <= REJECTED_AT).double().mean())


# --- tables -----------------------------------------------------------------------------------------------------------


def accuracy_table(found: dict[str, Outcome]) -> Iterator[str]:
    yield "| system | CIL % | of each seed | TIL % | core seconds per task |"
    yield "|---|--:|---|--:|--:|"
    for name, outcome in found.items():
        each, seconds = ", ".join(f"{value:.1f}" for value in outcome.cil), outcome.seconds
        taken = f"{statistics.fmean(seconds):.1f} (at most {max(seconds):.1f})" if seconds else ""
        til = _spread(outcome.til) if outcome.til else ""
        yield f"| {name} | {_spread(outcome.cil)} | {each} | {til} | {taken} |"


def stranger_table(found: dict[str, Outcome]) -> Iterator[str]:
    at = f"rejected at {REJECTED_AT:.0%}"
    yield f"| system | near: AUROC | near: {at} | far: AUROC | far: {at} |"
    yield "|---|--:|--:|--:|--:|"
    for name, outcome in found.items():
        cells = [
            f"{statistics.fmean(score[part] for score in scores):.{digits}}"
            for scores in (outcome.near, outcome.far)
            if scores
            for part, digits in ((0, "3f"), (1, "0%"))
        ]
        if cells:
            yield f"| {name} | {' | '.join(cells)} |"


def rate_table(found: dict[str, Outcome]) -> Iterator[str]:
    yield "| system | " + " | ".join(f"{rate:.0%}" for rate in RATES) + " |"
    yield "|---|" + "--:|" * len(RATES)
    for name, outcome in found.items():
        cells = []
        for rate, rejected in outcome.rejected.items():
            means, variances = zip(*outcome.expected[rate], strict=True)
            middle, reach = statistics.fmean(means), 1.645 * math.sqrt(sum(variances)) / len(variances)
            cells.append(
                f"{float(torch.cat(rejected).double().mean()):.1%} "
                f"({max(0.0, middle - reach):.1%} to {middle + reach:.1%})"
            )
        if cells:
            yield f"| {name} | {' | '.join(cells)} |"


def added_table(found: dict[str, Outcome]) -> Iterator[str]:
    yield "| system | CIL % with half of the photos | after the others were added |"
    yield "|---|--:|--:|"
    for name, outcome in found.items():
        if outcome.added:
            yield f"| {name} | " + " | ".join(_spread(values) for values in zip(*outcome.added, strict=True)) + " |"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photos", description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", help="one per task; a+b joins two folders with the same classes")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--per-class", type=int, default=40, help="photos of each class to learn from")
    parser.add_argument("--systems", default=",".join(ON_FROZEN_FEATURES))
    parser.add_argument("--clom", action="store_true", help="also CLOM with adapters, which takes minutes")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--size", type=int)
    parser.add_argument("--only-accuracy", action="store_true")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    systems = Systems(options.backbone, options.size)
    folders = [read_task(text, systems.make("ncm", 0).image_shape[-1]) for text in options.folders]
    names, seeds = options.systems.split(","), [int(seed) for seed in options.seeds.split(",")]
    _warm(systems, folders)
    found: dict[str, Outcome] = {}
    for name in [*names, "clom"] if options.clom else names:
        outcome = found.setdefault(name, Outcome())
        for seed in seeds:
            measure(outcome, systems.make(name, seed), folders, seed, options.per_class)
            if not options.only_accuracy:
                strangers(outcome, systems, name, folders, seed, options.per_class)
                if name in ON_FROZEN_FEATURES:
                    add_photos(outcome, systems.make(name, seed), folders, seed, options.per_class)
    for title, features in (("joint probe", "stages"), ("joint probe, last layer only", "last")):
        if options.backbone == "efficientnet-lite0":
            found[title] = Outcome(_probes(systems, folders, seeds, options.per_class, features))
    counts = ", ".join(f"{folder.name} ({len(folder.pictures.class_names)} classes)" for folder in folders)
    print(f"{counts}; {options.per_class} photos of each class to learn from; {options.backbone}\n")
    for table in (accuracy_table, *(() if options.only_accuracy else (stranger_table, rate_table, added_table))):
        print("\n".join(table(found)) + "\n")


def _warm(systems: Systems, folders: Sequence[Folder]) -> None:
    """Compute the features of all photos once, so that learning alone is timed."""
    method = systems.make("experts", 0)
    assert isinstance(method, FrozenMethod)
    for folder in folders:
        method.embed_views(folder.pictures.images.pixels, lambda count: None)


def _probes(systems: Systems, folders: Sequence[Folder], seeds: Sequence[int], few: int, features: str) -> list[float]:
    method = systems.make("ncm", 0)
    assert isinstance(method, FrozenMethod)
    assert isinstance(method.net_settings, PretrainedSettings)
    columns = slice(None) if features == "stages" else slice(-1280, None)
    found = []
    for seed in seeds:
        parts, start = [], 0
        for folder in folders:
            taught, test = folder.split(seed, few)
            for images in (taught.images, test):
                parts.append((method.embed(images.pixels)[:, columns], images.labels + start))
            start += len(folder.pictures.class_names)
        found.append(joint_probe(parts[::2], parts[1::2], start, seed))
    return found


if __name__ == "__main__":
    main()
