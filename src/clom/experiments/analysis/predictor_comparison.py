"""Comparison of task predictors on a finished run of a masked method. Nothing is trained.

Every predictor is fitted to what the model stores: statistics of its tasks and samples. Statistics of a model from an
earlier version, which has none, are taken from the training images; they are what the method would have stored, because
its tasks' networks never change. Validation images that the method does not store judge the predictors; test images
report them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Stream
from clom.evaluation.metrics import auc, fpr95
from clom.evaluation.task_prediction import Outcome, outcome
from clom.methods.families.base import Method
from clom.methods.families.masked import MaskedMethod
from clom.ood.predictors.base import TaskOutputs, TaskPredictor
from clom.ood.registry import PREDICTORS

OnPass = Callable[[int, int], None]


@dataclass(frozen=True)
class Unknown:
    """How well the highest score of all tasks separates test images from those of an external data set."""

    auc: float
    fpr95: float


@dataclass(frozen=True)
class PredictorResult:
    """The results of one predictor, as fractions."""

    title: str
    validation: Outcome | None
    """On validation images that are not stored; None if all are stored."""
    test: Outcome
    statistics_bytes: int
    """What it keeps of all tasks' data besides samples, and what it learned from these."""
    sample_bytes: int
    external: dict[str, Unknown]


def comparable(method: Method) -> bool:
    """Whether the method has what predictors need: networks of its tasks that never change."""
    return isinstance(method, MaskedMethod) and method.exact_memory and not method.protection.net.has_frozen_backbone


def compare_predictors(
    method: Method,
    stream: Stream,
    external: Mapping[str, Images],
    on_pass: OnPass = lambda done, total: None,
) -> dict[str, PredictorResult]:
    """The results of all predictors that need no OOD score, by name; none if the method is not `comparable`."""
    if not isinstance(method, MaskedMethod) or not comparable(method):
        return {}
    method.complete_statistics(list(stream))
    sets = {f"test {task}": images for task, images in enumerate(stream.tests)}
    sets |= {f"validation {task}": _not_stored(method, images.validation) for task, images in enumerate(stream)}
    sets |= {f"external {name}": images for name, images in external.items()}
    outputs = _all_outputs(method, sets, on_pass)
    keeps_samples = method.settings.keeps_samples
    names = [
        name
        for name in PREDICTORS.names()
        if "score" not in (needs := PREDICTORS.get(name).needs) and (keeps_samples or "samples" not in needs)
    ]
    chosen = method.settings.predictor
    results = {}
    for name in names:
        method.use_predictor(name)
        results[name] = _result(method, name, stream, outputs, external)
    method.use_predictor(chosen)
    return results


def _result(
    method: MaskedMethod,
    name: str,
    stream: Stream,
    outputs: Mapping[str, Sequence[TaskOutputs]],
    external: Mapping[str, Images],
) -> PredictorResult:
    kind, predictor, tasks = PREDICTORS.get(name), method.prediction.predictor(), range(len(stream))
    rest = [_not_stored(method, task.validation).labels for task in stream]
    judged = all(len(labels) for labels in rest)
    own = torch.cat([_familiarity(predictor, outputs[f"test {task}"]) for task in tasks])
    return PredictorResult(
        title=kind.title or name,
        validation=outcome(predictor, [outputs[f"validation {task}"] for task in tasks], rest) if judged else None,
        test=outcome(predictor, [outputs[f"test {task}"] for task in tasks], [test.labels for test in stream.tests]),
        statistics_bytes=method.prediction.kept_bytes,
        sample_bytes=method.memory_bytes if "samples" in kind.needs else 0,
        external={
            other: Unknown(auc(own, far), fpr95(own, far))
            for other in external
            for far in [_familiarity(predictor, outputs[f"external {other}"])]
        },
    )


def _familiarity(predictor: TaskPredictor, outputs: Sequence[TaskOutputs]) -> Tensor:
    """The highest score of all tasks, `[images]`."""
    return predictor(outputs).double().amax(1)


def _all_outputs(method: MaskedMethod, sets: Mapping[str, Images], on_pass: OnPass) -> dict[str, Sequence[TaskOutputs]]:
    outputs: dict[str, Sequence[TaskOutputs]] = {}
    for number, (name, images) in enumerate(sets.items(), start=1):
        outputs[name] = method.all_outputs(images.pixels, True)
        on_pass(number, len(sets))
    return outputs


def _not_stored(method: MaskedMethod, images: Images) -> Images:
    """The images that are not among the method's samples."""
    stored = {sample.numpy().tobytes() for sample in method.memory.pixels.cpu()}
    return images[torch.tensor([sample.numpy().tobytes() not in stored for sample in images.pixels], dtype=torch.bool)]
