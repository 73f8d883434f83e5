"""Predictions for photos: the most likely classes, or unknown."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clom.data.images import resized
from clom.errors import UserError
from clom.methods.families.base import Method
from clom.ood.rejection import FALSE_REJECTION, check_rate, is_unknown


@dataclass(frozen=True)
class Guess:
    """A candidate class and its probability among the competing classes."""

    class_name: str
    confidence: float
    task: str


@dataclass(frozen=True)
class Answer:
    """`guesses` are the most likely classes, best first, even if the photo is `unknown`.

    `familiarity` estimates the fraction of photos of the best guess's task with an OOD score no higher than this one;
    the photo is unknown if that does not exceed the false-rejection rate. None if no photos were held out.
    `belonging` is the OOD score of each task, high for in-distribution photos.
    """

    guesses: tuple[Guess, ...]
    unknown: bool
    familiarity: float | None
    belonging: dict[str, float]

    @property
    def best(self) -> Guess:
        return self.guesses[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Predictor:
    """Predictions of one model. Construction is cheap; the first call builds the sub-networks."""

    def __init__(self, method: Method) -> None:
        if not method.tasks:
            raise UserError("This model has learned nothing yet. Teach it: clom learn MODEL FOLDER")
        self.method = method
        self.calibration = method.calibration
        self.logit_scale = _logit_scale(method)

    @torch.no_grad()
    def __call__(
        self, pixels: Tensor, task: str | None = None, top: int = 3, false_rejection: float = FALSE_REJECTION
    ) -> list[Answer]:
        """One answer per image; with `task`, only the classes of that task compete."""
        check_rate(false_rejection)
        numbers = list(range(len(self.method.tasks))) if task is None else [self.method.task_number(task)]
        if pixels.dtype == torch.uint8:
            pixels = resized(pixels, self.method.image_shape)
        blocks, belonging = self.method.blocks_and_belonging(pixels, None if task is None else numbers)
        if task is None and self.method.uses_predictor:
            chances = torch.cat(self.method.comparable_blocks(pixels), 1).softmax(1)
        else:
            calibration = self.calibration if task is None else self.calibration.for_task(numbers[0])
            chances = (self.logit_scale * torch.cat(calibration(blocks), 1)).softmax(1)
        classes = [(name, number) for number in numbers for name in self.method.tasks[number].class_names]
        best = chances.topk(min(max(1, top), len(classes)), dim=1)
        answers = []
        for columns, sure, own in zip(best.indices.tolist(), best.values.tolist(), belonging.tolist(), strict=True):
            likely = [(*classes[column], chance) for column, chance in zip(columns, sure, strict=True)]
            answers.append(self._answer(likely, dict(zip(numbers, own, strict=True)), false_rejection))
        return answers

    def _answer(self, likely: list[tuple[str, int, float]], own: dict[int, float], false_rejection: float) -> Answer:
        """The task of the best guess decides whether the image is unknown."""
        tasks = self.method.tasks
        _, number, _ = likely[0]
        record = tasks[number].record
        familiarity = record.own_scores.familiarity(own[number]) if record else None
        return Answer(
            guesses=tuple(Guess(name, chance, tasks[task].name) for name, task, chance in likely),
            unknown=is_unknown(familiarity, false_rejection),
            familiarity=familiarity,
            belonging={tasks[task].name: score for task, score in own.items()},
        )


def _logit_scale(method: Method) -> float:
    """Geometric mean of the tasks' inverse temperatures; a single one for all classes changes no prediction."""
    logs = [math.log(task.record.logit_scale) for task in method.tasks if task.record]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
