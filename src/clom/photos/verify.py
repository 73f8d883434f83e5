"""Verification that nothing was forgotten: the scores and the answers of every task are bit-identical."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from clom.methods.families.base import Method
from clom.ood.rejection import FALSE_REJECTION
from clom.photos.predict import Answer, Predictor
from clom.storage.fingerprint import fingerprint, probes
from clom.storage.model_file import load_model

Verdict = Literal["identical", "changed", "missing", "new", "not recorded"]


@dataclass(frozen=True)
class Check:
    """The result for one task."""

    task: str
    verdict: Verdict
    reason: str
    fingerprint: str = ""

    @property
    def good(self) -> bool:
        return self.verdict in ("identical", "new")


def verify(path: Path, against: Path | None = None) -> list[Check]:
    """Compare every task of the older model `against` with the task of that name at `path`; then list new tasks.

    The values that determine a task's scores must be bit-identical, and so must, for a few generated images, the scores
    and what a person sees when that task is given: classes, confidences and whether the image is unknown. Without an
    older model each task is compared with the fingerprint recorded when it was learned.
    """
    model = load_model(path)
    if against is None:
        return [_as_recorded(model, number) for number in range(len(model.tasks))]
    old = load_model(against)
    names = [task.name for task in model.tasks]
    checks = []
    for number, task in enumerate(old.tasks):
        if task.name in names:
            checks.append(_compare(old, number, model, names.index(task.name)))
        else:
            checks.append(Check(task.name, "missing", f"{path.name} does not contain this task"))
    known = {task.name for task in old.tasks}
    added = [name for name in names if name not in known]
    return checks + [Check(name, "new", f"learned after {against.name}") for name in added]


def _as_recorded(model: Method, number: int) -> Check:
    task = model.tasks[number]
    if task.record is None:
        return Check(task.name, "not recorded", "the file has no fingerprint from when it was learned")
    now = fingerprint(model, number)
    if now != task.record.fingerprint:
        return Check(task.name, "changed", "its parameters are not those that were learned", now)
    return Check(task.name, "identical", f"as learned on {task.record.day}", now)


def _compare(old: Method, before: int, new: Method, after: int) -> Check:
    name = old.tasks[before].name
    if old.tasks[before].class_names != new.tasks[after].class_names:
        return Check(name, "changed", "its class names differ")
    prints = fingerprint(old, before), fingerprint(new, after)
    if prints[0] != prints[1]:
        return Check(name, "changed", "its parameters are not bit-identical", prints[1])
    images = probes(old.image_shape)
    (old_block, old_belonging, old_answers), (new_block, new_belonging, new_answers) = (
        _outputs(method, images, task) for method, task in ((old, before), (new, after))
    )
    if not (torch.equal(old_block, new_block) and torch.equal(old_belonging, new_belonging)):
        return Check(name, "changed", f"its scores for {len(images)} generated images differ", prints[1])
    if old.tasks[before].merged != new.tasks[after].merged:
        return Check(name, "changed", "its scores are the same, but other classes are merged", prints[1])
    if old_answers != new_answers:
        return Check(name, "changed", f"its answers for {len(images)} generated images differ", prints[1])
    return Check(name, "identical", f"same parameters, same answers for {len(images)} generated images", prints[1])


def _outputs(method: Method, images: Tensor, task: int) -> tuple[Tensor, Tensor, list[Answer]]:
    """What the program computes and what a person sees: the scores of one task, and its answers with all classes."""
    predictor = Predictor(method)
    (block,), belonging = predictor.scores(images, [task])
    return block, belonging, predictor.task_answers(task, block, belonging[:, 0], block.shape[1], FALSE_REJECTION)
