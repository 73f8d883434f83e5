"""OOD scores on a finished run, without any training: which one tells tasks, and other images, apart best?

Every score is fitted to a sample of each task's training images and sees the task's raw block, features and head. The
class within a task is always the block's. Scores are standardised on the task's own validation images; the best one is
chosen, and the threshold for rejecting images is set, on validation images, too. All other figures are of test images.

Where a task's model never changes after it was learned, all this could have been fitted right then, without keeping an
image. For methods without exact memory it could not: their scores use old training images that a continual learner does
not have any more. The report says so.

A head over rotations is read at rotation 0 where a score needs a linear head on the features of the unrotated image
(ViM's origin, ReAct); the block itself stays the average over the rotations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clom.data import catalog
from clom.data.images import Images, fitted, spread
from clom.data.memory import per_class
from clom.data.stream import Stream
from clom.errors import UserError, unknown
from clom.evaluation.metrics import Rejection, auc, aupr, fpr95, mean_auc, mean_of_pairs, pair_grid, rejection
from clom.evaluation.rules import RULES, Outcome, Standard, by_argmax, outcome
from clom.evaluation.scorebook import Scorebook
from clom.experiments.analysis.task_outputs import OutputBook, WithFeatures, WithLinearHead
from clom.experiments.catalogue import read_experiment
from clom.experiments.config import RunConfig
from clom.experiments.run import read_finished
from clom.files import write_atomically
from clom.learning.loop import generator
from clom.methods.families.base import Blocks, Method
from clom.methods.families.masked import MaskedMethod
from clom.ood.odin import ODIN
from clom.ood.scores import (
    GEN,
    KNN,
    MSP,
    Energy,
    Mahalanobis,
    MaxLogit,
    NegEntropy,
    Outputs,
    ReAct,
    RelativeMahalanobis,
    Score,
    ViM,
)
from clom.storage.model_file import load_model
from clom.storage.tensors import read_tensors

_TRAINING, _EXTERNAL = 1000, 1000  # images of a task to fit scores to, and of an external set to judge
OnPass = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoreResult:
    """One score. Fractions, not percent; test images unless said otherwise."""

    auc_validation: float
    auc: float
    """Mean over pairs of tasks: own images of the one against those of the other."""
    fpr95: float
    aupr: float
    rules: dict[str, Outcome]
    external_auc: dict[str, float]
    """Mean over tasks: own images against those of a set that no task knows."""
    rejection: Rejection
    """By the most eager task's standardised score."""


@dataclass(frozen=True)
class ScoresReport:
    """What `scores.json` holds."""

    experiment: str
    method: str
    budget: str
    seed: int
    til: float
    best: str
    """The score with the highest AUC on validation images."""
    argmax: dict[str, Outcome]
    """By calibration: the rule that needs no score, largest entry of all blocks."""
    scores: dict[str, ScoreResult]
    external: dict[str, int]
    """External set -> how many of its images were used."""
    missing: list[str]
    """External sets that are not on this machine."""
    exact_memory: bool
    """Whether fitting at the end is the same as fitting right after each task."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_run(
    folder: Path,
    data: Path | None = None,
    external: Sequence[str] | None = None,
    wanted_rejection: float = 0.05,
    on_pass: OnPass = lambda done, total: None,
) -> ScoresReport:
    """Compute everything, write `scores.json`; what the networks said is kept, so that a second call is quick."""
    config = read_finished(folder)
    names = external_names(config, external)
    stream = config.data.stream(data, config.seed)
    method = load_model(folder / "model.safetensors")
    book = Scorebook(stream.tests)
    book.restore(read_tensors(folder / "scores.safetensors")[0], len(stream))
    others = {name: external_images(name, data, stream.image_shape) for name in names if catalog.available(name, data)}
    said = _ask(OutputBook(folder, method), stream, book, others, config.seed, on_pass)
    labels = [images.labels for images in stream.tests]
    blocks = [book.blocks(test) for test in range(len(stream))]
    scores = {
        name: _result(_values(score_of, said), blocks, labels, wanted_rejection)
        for name, score_of in said.scores.items()
    }
    right = [row[task].argmax(1) == labels[task] for task, row in enumerate(blocks)]
    report = ScoresReport(
        experiment=config.experiment,
        method=config.method,
        budget=config.budget,
        seed=config.seed,
        til=float(torch.cat(right).double().mean()),
        best=max(scores, key=lambda name: scores[name].auc_validation),
        argmax=_argmax(method, blocks, labels),
        scores=scores,
        external={name: len(images) for name, images in others.items()},
        missing=[name for name in names if name not in others],
        exact_memory=method.exact_memory,
    )
    write_atomically(folder / "scores.json", (json.dumps(report.to_json(), indent=1) + "\n").encode())
    return report


def external_names(config: RunConfig, given: Sequence[str] | None) -> list[str]:
    """The sets asked for, or those of the experiment."""
    names = list(dict.fromkeys(read_experiment(config.experiment).get("external", []) if given is None else given))
    for name in names:
        if name not in catalog.names():
            raise unknown("data set", name, catalog.names())
        if name == config.data.set:
            raise UserError(f"'{name}' is what this run learned: an external set must hold other classes.")
    return names


def external_images(name: str, data: Path | None, image_shape: Sequence[int]) -> Images:
    """The images of a set that no task knows, made to look like the run's own in size and channels."""
    return spread(fitted(catalog.load(name, data, download=False).test, image_shape), _EXTERNAL)


# --- asking the networks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Said:
    """Outputs by `[set][task model]`, and the scores fitted for each task model."""

    validation: list[list[Outputs]]
    test: list[list[Outputs]]
    external: dict[str, list[Outputs]]
    scores: dict[str, list[Score]]


def _ask(
    answers: OutputBook, stream: Stream, book: Scorebook, others: Mapping[str, Images], seed: int, on_pass: OnPass
) -> _Said:
    tasks = range(len(stream))
    sets = {f"validation {j}": stream[j].validation for j in tasks}
    sets |= {f"test {j}": stream.tests[j] for j in tasks}
    sets |= {f"external {name}": images for name, images in others.items()}
    known = {f"test {j}": book.blocks(j) for j in tasks}
    said: dict[str, list[Outputs]] = {name: [] for name in sets}
    scores: list[dict[str, Score]] = []
    for model, task in enumerate(stream):
        sample = per_class(task.train, max(2, _TRAINING // task.n_classes), generator(seed, "score fit", model))
        own = answers.training(sample, model)
        scores.append({name: score.fit(own) for name, score in _scores(answers, model).items()})
        for number, (name, images) in enumerate(sets.items(), start=1):
            block = known[name][model] if name in known else None
            said[name].append(answers.outputs(name, images, model, block))
            on_pass(model * len(sets) + number, len(tasks) * len(sets))
        answers.save()
    return _Said(
        validation=[said[f"validation {j}"] for j in tasks],
        test=[said[f"test {j}"] for j in tasks],
        external={name: said[f"external {name}"] for name in others},
        scores={name: [of_model[name] for of_model in scores] for name in scores[0]},
    )


def _scores(answers: OutputBook, model: int) -> dict[str, Score]:
    """The scores that a method's outputs allow."""
    method = answers.method
    scores: dict[str, Score] = {
        "MSP": MSP(),
        "MaxLogit": MaxLogit(),
        "Energy": Energy(),
        "NegEntropy": NegEntropy(),
        "GEN": GEN(),
    }
    if isinstance(method, MaskedMethod):
        scores["ODIN"] = ODIN()
    if isinstance(method, WithFeatures):
        scores |= {"Mahalanobis": Mahalanobis(), "rel. Mahalanobis": RelativeMahalanobis(), "kNN": KNN()}
        if isinstance(method, WithLinearHead):
            weight, bias = method.linear_head(model)
            weight = weight[:, answers.alive(model)]
            scores |= {"ViM": ViM(weight, bias), "ReAct": ReAct(weight, bias)}
    return scores


# --- from scores to figures ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """One score's numbers by `[set][task model]`."""

    validation: list[list[Tensor]]
    test: list[list[Tensor]]
    external: dict[str, list[Tensor]]


def _values(score_of: Sequence[Score], said: _Said) -> _Values:
    def numbers(row: Sequence[Outputs]) -> list[Tensor]:
        return [score(outputs) for score, outputs in zip(score_of, row, strict=True)]

    return _Values(
        validation=[numbers(row) for row in said.validation],
        test=[numbers(row) for row in said.test],
        external={name: numbers(row) for name, row in said.external.items()},
    )


def _result(values: _Values, blocks: Sequence[Blocks], labels: Sequence[Tensor], wanted: float) -> ScoreResult:
    tasks = range(len(labels))
    standard = Standard.fit([values.validation[task][task] for task in tasks])
    wants = [standard(row) for row in values.test]
    own = [values.test[task][task] for task in tasks]
    return ScoreResult(
        auc_validation=mean_auc(pair_grid(values.validation, auc)),
        auc=mean_auc(pair_grid(values.test, auc)),
        fpr95=mean_of_pairs(pair_grid(values.test, fpr95), alone=0.0),
        aupr=mean_of_pairs(pair_grid(values.test, aupr), alone=1.0),
        rules={name: outcome(rule, blocks, wants, labels) for name, rule in RULES.items() if rule is not by_argmax},
        external_auc={
            name: sum(auc(own[task], row[task]) for task in tasks) / len(tasks) for name, row in values.external.items()
        },
        rejection=rejection(
            torch.cat([standard(row).amax(1) for row in values.validation]),
            torch.cat([want.amax(1) for want in wants]),
            {name: standard(row).amax(1) for name, row in values.external.items()},
            wanted,
        ),
    )


def _argmax(method: Method, blocks: Sequence[Blocks], labels: Sequence[Tensor]) -> dict[str, Outcome]:
    no_scores = [torch.empty(0)] * len(labels)
    return {
        name: outcome(by_argmax, [way(row) for row in blocks], no_scores, labels)
        for name, way in method.calibrations().items()
    }
