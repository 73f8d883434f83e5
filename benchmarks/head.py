"""Step 2 on the same features with two solvers: the head fitted by L-BFGS (ours) or trained by SGD (the paper's).

The head never changes the features, so both solvers see the same ones. Prints accuracy and the seconds after step 1 as
mean and standard deviation over seeds. Not part of `make bench`: about ten minutes.

python -m benchmarks.head [--seeds 0,1,2] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clom import machine
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings, SgdHeadSettings
from clom.learning.loop import Plan
from clom.learning.progress import Progress
from clom.methods.clom import Clom, ClomSettings

EXPERIMENT = "digits-5t"


@dataclass(frozen=True)
class Outcome:
    """Results of one seed: percent, and seconds over all tasks."""

    til: float
    cil: float
    not_calibrated: float
    features: float
    head: float


def heads(quick: bool) -> dict[str, HeadSettings | SgdHeadSettings]:
    if quick:
        return {
            "L-BFGS": HeadSettings(views=1, iterations=5),
            "SGD": SgdHeadSettings(plan=Plan(epochs=1, batch=64)),
        }
    return {"L-BFGS": HeadSettings(), "SGD": SgdHeadSettings()}


def measure(head: HeadSettings | SgdHeadSettings, seed: int, quick: bool) -> Outcome:
    config = resolve(EXPERIMENT, "clom", "smoke" if quick else "cpu", seed)
    settings = ClomSettings.model_validate(config.settings)
    learning: ContrastiveSettings = settings.learning.model_copy(update={"head": head})
    stream = config.data.stream(None, seed)
    model = Clom(config.net, settings.model_copy(update={"learning": learning}), stream.image_shape, seed)
    features = after = 0.0
    for task in stream:
        clock = Clock()
        model.learn(task, TrainingContext(clock))
        features += clock.features_done - clock.started
        after += time.perf_counter() - clock.features_done
    book = Scorebook(stream.tests)
    book.update(model)
    result = evaluate(book, model.calibrations())
    plain = result.by_calibration["none"].cil
    return Outcome(100 * result.til, 100 * result.preferred.cil, 100 * plain, features, after)


class Clock:
    """A progress listener that records when step 1 ended."""

    def __init__(self) -> None:
        self.started = self.features_done = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "features":
            self.features_done = time.perf_counter()


def line(name: str, outcomes: Sequence[Outcome]) -> str:
    def told(values: Sequence[float]) -> str:
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.fmean(values):.1f} +- {spread:.1f}"

    columns = zip(*((o.til, o.cil, o.not_calibrated, o.features, o.head) for o in outcomes), strict=True)
    return " | ".join([f"| {name}", *(told(column) for column in columns)]) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.head", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--quick", action="store_true", help="the smoke budget, as a quick test")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    machine.tune_process(options.threads)
    found: dict[str, list[Outcome]] = {name: [] for name in heads(options.quick)}
    for seed in map(int, options.seeds.split(",")):
        for name, head in heads(options.quick).items():  # alternate
            found[name].append(measure(head, seed, options.quick))
    print(f"| head, {EXPERIMENT} | TIL % | CIL % | CIL, not calibrated % | seconds of step 1 | seconds after it |")
    print("|---|---|---|---|---|---|")
    for name, outcomes in found.items():
        print(line(name, outcomes))


if __name__ == "__main__":
    main()
