"""Comparison of OOD scores on a finished run, without training.

Every score is fitted to a sample of each task's training images and gets the task's uncalibrated block and what else it
needs (features, a linear head, ...); scores whose needs the method cannot meet are left out. The class within a task is
always that of the block. Validation images are used to standardise scores for each task, to select the best score and
to set the rejection threshold. All other results are on test images.

If a task's model never changes after it was learned, the scores could have been fitted right then, without storing an
image. For methods without exact memory this is not so: their scores use old training images that a continual learner no
longer has. The report says so.

Scores that need a linear head on the features of the unrotated image (ViM's origin, ReAct) get the head's block for
rotation 0; the scores in the block itself are averaged over rotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clom.data import catalog
from clom.data.images import Images, evenly_spaced, resized_images
from clom.data.memory import per_class
from clom.data.stream import Stream
from clom.errors import UserError, unknown
from clom.evaluation.metrics import Rejection, auc, aupr, fpr95, mean_auc, mean_of_pairs, pair_grid, rejection
from clom.evaluation.scorebook import Scorebook
from clom.evaluation.task_prediction import Outcome, outcome
from clom.experiments.analysis.predictor_comparison import PredictorResult, compare_predictors
from clom.experiments.analysis.task_outputs import OutputBook, unmet
from clom.experiments.catalogue import experiment_names, read_experiment
from clom.experiments.config import RunConfig
from clom.experiments.run import read_finished
from clom.files import write_json
from clom.learning.loop import generator
from clom.methods.families.base import Blocks, Method, move
from clom.ood.predictors.base import TaskOutputs, TaskPredictor
from clom.ood.predictors.rules import Argmax, Standardiser
from clom.ood.registry import PREDICTORS, SCORES, chosen
from clom.ood.rejection import FALSE_REJECTION
from clom.ood.scores import NEEDS, Outputs, Score
from clom.storage.model_file import load_model
from clom.storage.score_file import read_scores

_TRAINING, _EXTERNAL = 1000, 1000  # images of each task to fit scores to, and of an external data set to score
OnPass = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoreResult:
    """The results of one score, as fractions; on test images unless stated otherwise."""

    auc_validation: float
    auc: float
    """Mean over pairs of tasks: images of one task against those of the other."""
    fpr95: float
    aupr: float
    rules: dict[str, Outcome]
    """By task predictor."""
    external_auc: dict[str, float]
    """Mean over tasks: images of the task against those of an external data set."""
    rejection: Rejection
    """By the highest standardised score of all tasks."""


@dataclass(frozen=True)
class ScoresReport:
    """The content of `scores.json`."""

    experiment: str
    method: str
    budget: str
    seed: int
    til: float
    best: str
    """The score with the highest AUC on validation images."""
    argmax: dict[str, Outcome]
    """By calibration: the largest entry of all blocks, which needs no score."""
    scores: dict[str, ScoreResult]
    external: dict[str, int]
    """External data set -> number of images used."""
    missing: list[str]
    """External data sets that are not on this machine."""
    exact_memory: bool
    """Whether fitting at the end is the same as fitting right after each task."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Score -> needs that the method does not meet."""
    predictors: dict[str, PredictorResult] = field(default_factory=dict)
    """By name; empty for methods without a network per task."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_run(
    folder: Path,
    data: Path | None = None,
    external: Sequence[str] | None = None,
    wanted_rejection: float = FALSE_REJECTION,
    on_pass: OnPass = lambda done, total: None,
    scores: Sequence[str] = (),
    predictors: Sequence[str] = (),
    device: torch.device | None = None,
    task_predictors: bool = True,
) -> ScoresReport:
    """Compare scores and write `scores.json`; the outputs that scores use are stored, so that a second call is fast.

    `task_predictors`: also compare task predictors, whose larger outputs are computed anew.

    `scores` are names to restrict the comparison to, and scores to add as `FILE.py:Name` or `package.module:Name`;
    `predictors` are added to those that are registered.
    """
    wanted = by_title(scores)
    predict = all_predictors(predictors)
    config = read_finished(folder)
    names = external_names(config, external)
    stream = config.data.stream(data, config.seed)
    method = load_model(folder / "model.safetensors")
    move(method, device or torch.device("cpu"))
    left_out = {title: missing for title, kind in wanted.items() if (missing := unmet(method, kind.needs))}
    kinds = {title: kind for title, kind in wanted.items() if title not in left_out}
    if not kinds:
        raise UserError(f"No score is left: {unmet_needs(config.method, left_out)}")
    book = Scorebook(stream.tests)
    book.restore(read_scores(folder / "scores.safetensors", [task.n_classes for task in stream]))
    others = {name: external_images(name, data, stream.image_shape) for name in names if catalog.available(name, data)}
    computed = _compute(OutputBook(folder, method), kinds, stream, book, others, config.seed, on_pass)
    labels = [images.labels for images in stream.tests]
    blocks = book.all_blocks()
    results = {
        title: _result(_values(title, fitted, computed), predict, blocks, labels, wanted_rejection)
        for title, fitted in computed.scores.items()
    }
    correct = [row[task].argmax(1) == labels[task] for task, row in enumerate(blocks)]
    report = ScoresReport(
        experiment=config.experiment,
        method=config.method,
        budget=config.budget,
        seed=config.seed,
        til=float(torch.cat(correct).double().mean()),
        best=max(results, key=lambda title: results[title].auc_validation),
        argmax=_argmax(method, blocks, labels),
        scores=results,
        external={name: len(images) for name, images in others.items()},
        missing=[name for name in names if name not in others],
        exact_memory=method.exact_memory,
        left_out=left_out,
        predictors=compare_predictors(method, stream, others, on_pass) if task_predictors else {},
    )
    write_json(folder / "scores.json", report.to_json())
    return report


def by_title(references: Sequence[str] = ()) -> dict[str, type[Score]]:
    """The selected scores by title."""
    found: dict[str, type[Score]] = {}
    for name in chosen(SCORES, references):
        kind = SCORES.get(name)
        title = kind.title or name
        if title in found:
            raise UserError(f"Two scores have the title '{title}': give the class of '{name}' another one.")
        found[title] = kind
    return found


def all_predictors(references: Sequence[str] = ()) -> dict[str, TaskPredictor]:
    """All registered predictors, and those given as code, that decide by one OOD score per task."""
    for reference in references:
        PREDICTORS.named(reference)
    kinds = {name: PREDICTORS.get(name) for name in PREDICTORS.names()}
    return {name: kind() for name, kind in kinds.items() if "score" in kind.needs}


def unmet_needs(method: str, left_out: Mapping[str, Sequence[str]]) -> str:
    """Why scores were left out, as a sentence."""
    each = (f"{title} (needs {' and '.join(NEEDS[need] for need in needs)})" for title, needs in left_out.items())
    return f"{method} does not provide what they need: {', '.join(each)}."


def external_names(config: RunConfig, given: Sequence[str] | None) -> list[str]:
    """The external data sets that were given, or those of the experiment."""
    names = list(dict.fromkeys(_usual_external(config) if given is None else given))
    for name in names:
        if name not in catalog.names():
            raise unknown("data set", name, catalog.names())
        if name == config.data.set:
            raise UserError(f"This run learned '{name}': an external data set must have other classes.")
    return names


def _usual_external(config: RunConfig) -> Sequence[str]:
    built_in = config.experiment in experiment_names()
    return read_experiment(config.experiment).external if built_in else config.external


def external_images(name: str, data: Path | None, image_shape: Sequence[int]) -> Images:
    """The images of an external data set, converted to the size and channels of the run."""
    return evenly_spaced(resized_images(catalog.load(name, data, download=False).test, image_shape), _EXTERNAL)


# --- running the networks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Computed:
    """Outputs by `[set][task model]`, and the scores fitted for each task model."""

    validation: list[list[Outputs]]
    test: list[list[Outputs]]
    external: dict[str, list[Outputs]]
    scores: dict[str, list[Score]]


def _compute(
    outputs: OutputBook,
    kinds: Mapping[str, type[Score]],
    stream: Stream,
    book: Scorebook,
    others: Mapping[str, Images],
    seed: int,
    on_pass: OnPass,
) -> _Computed:
    tasks = range(len(stream))
    needs = {need for kind in kinds.values() for need in kind.needs}
    sets = {f"validation {j}": stream[j].validation for j in tasks}
    sets |= {f"test {j}": stream.tests[j] for j in tasks}
    sets |= {f"external {name}": images for name, images in others.items()}
    known = {f"test {j}": book.blocks(j) for j in tasks}
    found: dict[str, list[Outputs]] = {name: [] for name in sets}
    scores: dict[str, list[Score]] = {title: [] for title in kinds}
    for model, task in enumerate(stream):
        sample = per_class(task.train, max(2, _TRAINING // task.n_classes), generator(seed, "score fit", model))
        own = outputs.training(sample, model, needs)
        for title, kind in kinds.items():
            scores[title].append(kind().fit(own.only(kind.needs)))
        for number, (name, images) in enumerate(sets.items(), start=1):
            block = known[name][model] if name in known else None
            found[name].append(outputs.outputs(name, images, model, needs, block))
            on_pass(model * len(sets) + number, len(tasks) * len(sets))
        outputs.save()
    return _Computed(
        validation=[found[f"validation {j}"] for j in tasks],
        test=[found[f"test {j}"] for j in tasks],
        external={name: found[f"external {name}"] for name in others},
        scores=scores,
    )


# --- from scores to figures ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """One score's numbers by `[set][task model]`."""

    validation: list[list[Tensor]]
    test: list[list[Tensor]]
    external: dict[str, list[Tensor]]


def _values(title: str, fitted_scores: Sequence[Score], computed: _Computed) -> _Values:
    def numbers(row: Sequence[Outputs]) -> list[Tensor]:
        pairs = zip(fitted_scores, row, strict=True)
        return [_checked(title, score(outputs.only(score.needs)), outputs) for score, outputs in pairs]

    return _Values(
        validation=[numbers(row) for row in computed.validation],
        test=[numbers(row) for row in computed.test],
        external={name: numbers(row) for name, row in computed.external.items()},
    )


def _checked(title: str, values: Tensor, outputs: Outputs) -> Tensor:
    """A plug-in score may return anything."""
    if values.shape != outputs.block.shape[:1] or not bool(torch.isfinite(values).all()):
        what = f"shape {tuple(values.shape)}" if values.shape != outputs.block.shape[:1] else "NaN or infinity"
        raise UserError(
            f"The score '{title}' returned {what} for {len(outputs.block)} images instead of one finite number for "
            "each. clom.testing.check_score tests a score on random outputs."
        )
    return values


def _result(
    values: _Values,
    predictors: Mapping[str, TaskPredictor],
    blocks: Sequence[Blocks],
    labels: Sequence[Tensor],
    wanted: float,
) -> ScoreResult:
    tasks = range(len(labels))
    standard = Standardiser.fit([values.validation[task][task] for task in tasks])
    standardised = [standard(row) for row in values.test]
    own = [values.test[task][task] for task in tasks]
    outputs = [
        [TaskOutputs(block, score=score) for block, score in zip(row, scores.unbind(1), strict=True)]
        for row, scores in zip(blocks, standardised, strict=True)
    ]
    return ScoreResult(
        auc_validation=mean_auc(pair_grid(values.validation, auc)),
        auc=mean_auc(pair_grid(values.test, auc)),
        fpr95=mean_of_pairs(pair_grid(values.test, fpr95), alone=0.0),
        aupr=mean_of_pairs(pair_grid(values.test, aupr), alone=1.0),
        rules={name: outcome(predictor, outputs, labels) for name, predictor in predictors.items()},
        external_auc={
            name: sum(auc(own[task], row[task]) for task in tasks) / len(tasks) for name, row in values.external.items()
        },
        rejection=rejection(
            torch.cat([standard(row).amax(1) for row in values.validation]),
            torch.cat([row.amax(1) for row in standardised]),
            {name: standard(row).amax(1) for name, row in values.external.items()},
            wanted,
        ),
    )


def _argmax(method: Method, blocks: Sequence[Blocks], labels: Sequence[Tensor]) -> dict[str, Outcome]:
    return {
        name: outcome(Argmax(), [[TaskOutputs(block) for block in calibrate(row)] for row in blocks], labels)
        for name, calibrate in method.calibrations().items()
    }
