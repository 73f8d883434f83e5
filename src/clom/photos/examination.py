"""What a lesson taught, measured on photos that the model has not seen: the record of the task, and its mistakes.

Tested by tests/photos/test_teach.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.data.folders import Pictures
from clom.data.images import Images
from clom.data.stream import Task
from clom.learning.context import OutOfFold
from clom.learning.logit_scale import fit_logit_scale
from clom.methods.families.base import Method
from clom.methods.families.frozen import FrozenMethod
from clom.methods.families.task_record import TaskRecord, now
from clom.nets.pretrained.feature_cache import FeatureCache
from clom.photos.competitors import Competitors
from clom.photos.mistakes import Mistakes, find_mistakes
from clom.photos.predict import Predictor
from clom.storage.fingerprint import fingerprint


@dataclass(frozen=True)
class HeldOut:
    """The answers to the held-out photos, right after the lesson; the model stores none of them."""

    pixels: Tensor
    files: tuple[str, ...]
    mistakes: Mistakes
    """Among all classes of the model; rows are those of `pixels`."""


Examination = tuple[TaskRecord, float, HeldOut]
"""The record of a task, its class-incremental accuracy, and the answers to its held-out photos."""


@torch.no_grad()
def examine(learner: Method, task: Task, pictures: Pictures) -> Examination:
    """On photos that were held out of training."""
    number, held = len(learner.tasks) - 1, task.validation
    raw, belonging = learner.blocks_and_belonging(held.pixels)
    blocks = learner.calibration(raw)
    scores, start = torch.cat(blocks, 1), sum(block.shape[1] for block in blocks[:number])
    within, overall = blocks[number].argmax(1) == held.labels, scores.argmax(1) == start + held.labels
    record = TaskRecord(
        learned=now(),
        images=_counts(task.train, task.n_classes),
        validation_images=_counts(held, task.n_classes),
        accuracy=float(within.double().mean()),
        logit_scale=fit_logit_scale(scores, start + held.labels),
        task_logit_scale=fit_logit_scale(raw[number], held.labels),
        belonging=tuple(sorted(belonging[:, number].tolist())),
        fingerprint=fingerprint(learner, number),
    )
    answers = [answer.best.class_name for answer in Predictor(learner)(held.pixels, top=1, false_rejection=0)]
    _, rows = pictures.split(seed=learner.seed)
    return record, float(overall.double().mean()), _held_out(task, held, pictures, rows, answers)


def examine_folds(learner: Method, task: Task, pictures: Pictures, outside: OutOfFold) -> Examination:
    """On the photos that the task was learned from, each by a fit without that photo."""
    held, counts = task.train[outside.photos], _counts(task.train, task.n_classes)
    right = outside.block.argmax(1) == outside.labels
    record = TaskRecord(
        learned=now(),
        images=counts,
        validation_images=counts,
        accuracy=float(right.double().mean()),
        logit_scale=outside.logit_scale,
        task_logit_scale=fit_logit_scale(outside.block, outside.labels),
        belonging=tuple(sorted(outside.belonging.tolist())),
        fingerprint=fingerprint(learner, outside.task),
        cross_fitted=True,
    )
    likely = Competitors(learner.tasks, range(len(learner.tasks))).most_likely(outside.scores.softmax(1), top=1)
    answers = [name for ((name, _, _),) in likely]
    overall = outside.scores.argmax(1) == outside.start + outside.labels
    return record, float(overall.double().mean()), _held_out(task, held, pictures, outside.photos, answers)


def _held_out(task: Task, held: Images, pictures: Pictures, rows: Tensor, answers: list[str]) -> HeldOut:
    truths = [task.class_names[label] for label in held.labels.tolist()]
    files = tuple(pictures.file_names[row] for row in rows.tolist())
    return HeldOut(held.pixels, files, find_mistakes(truths, answers))


@contextmanager
def remembered_features(learner: Method) -> Iterator[None]:
    """Within the context, frozen features of a photo are computed once, even if the photo occurs twice."""
    if isinstance(learner, FrozenMethod) and learner.cache is None:
        learner.cache = FeatureCache()
        try:
            yield
        finally:
            learner.cache = None
    else:
        yield


def _counts(images: Images, n_classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(images.labels, minlength=n_classes).tolist())
