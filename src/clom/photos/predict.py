"""Predictions for photos: the most likely classes, or unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from clom.data.images import resized
from clom.errors import UserError
from clom.learning.logit_scale import fit_logit_scale
from clom.methods.families.base import Blocks, Method
from clom.ood.rejection import FALSE_REJECTION, check_rate, is_unknown
from clom.photos.competitors import Competitors
from clom.threads import Workers

Result = TypeVar("Result")


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
        self._task_logit_scales: dict[int, float] = {}
        self._workers = Workers()

    @torch.no_grad()
    def __call__(
        self, pixels: Tensor, task: str | None = None, top: int = 3, false_rejection: float = FALSE_REJECTION
    ) -> list[Answer]:
        """One answer per image. With `task`, only the classes of that task compete, and the answer depends on nothing
        but that task: tasks that are learned or forgotten later do not change it, if the method has `exact_memory`."""
        check_rate(false_rejection)
        numbers = list(range(len(self.method.tasks))) if task is None else [self.method.task_number(task)]
        if task is None and self.method.uses_predictor:
            parts = self._by_image(self.method.comparable_and_belonging, pixels)
            chances = torch.cat([torch.cat(compared, 1) for compared, _ in parts]).softmax(1)
            return self._answers(numbers, chances, torch.cat([own for _, own in parts]), top, false_rejection)
        blocks, belonging = self.scores(pixels, None if task is None else numbers)
        if task is not None:
            return self.task_answers(numbers[0], blocks[0], belonging[:, 0], top, false_rejection)
        chances = (self.logit_scale * torch.cat(self.calibration(blocks), 1)).softmax(1)
        return self._answers(numbers, chances, belonging, top, false_rejection)

    @torch.no_grad()
    def scores(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """`Method.blocks_and_belonging`, computed so that the answers about an image depend on that image alone."""
        parts = self._by_image(partial(self.method.blocks_and_belonging, tasks=tasks), pixels)
        blocks = [torch.cat(of_task) for of_task in zip(*(blocks for blocks, _ in parts), strict=True)]
        return blocks, torch.cat([belonging for _, belonging in parts])

    def _by_image(self, function: Callable[[Tensor], Result], pixels: Tensor) -> list[Result]:
        """The results for one image after the other, or side by side, each on one thread: matrix products and
        convolutions add in another order for another number of images or threads. On a CPU, larger batches are hardly
        faster. A GPU needs them: there, the last digits depend on the other images."""

        def result(part: Tensor) -> Result:
            return function(resized(part, self.method.image_shape) if part.dtype == torch.uint8 else part)

        if self.method.device.type != "cpu":
            return [result(pixels)]
        return self._workers.run_on_one_thread_each([partial(result, image) for image in torch.split(pixels, 1)])

    def task_answers(
        self, number: int, block: Tensor, belonging: Tensor, top: int, false_rejection: float
    ) -> list[Answer]:
        """The answers of one task, from its own scores: without the calibration, which later tasks change."""
        chances = (self._task_logit_scale(number) * block).softmax(1)
        return self._answers([number], chances, belonging[:, None], top, false_rejection)

    def _answers(
        self, numbers: Sequence[int], chances: Tensor, belonging: Tensor, top: int, false_rejection: float
    ) -> list[Answer]:
        if not bool(torch.isfinite(chances).all() and torch.isfinite(belonging).all()):
            raise UserError("The model has NaN or infinite scores for an image, so it cannot be used: it is damaged.")
        likely = Competitors(self.method.tasks, numbers).most_likely(chances, top)
        scores = [dict(zip(numbers, own, strict=True)) for own in belonging.tolist()]
        return [self._answer(best, own, false_rejection) for best, own in zip(likely, scores, strict=True)]

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

    def _task_logit_scale(self, number: int) -> float:
        """The inverse temperature of a task's own scores: as recorded, or else fitted to its stored samples."""
        if number not in self._task_logit_scales:
            self._task_logit_scales[number] = _task_logit_scale(self.method, number)
        return self._task_logit_scales[number]


def _task_logit_scale(method: Method, number: int) -> float:
    record = method.tasks[number].record
    if record is not None and record.task_logit_scale is not None:
        return record.task_logit_scale
    images, labels = method.held_out_images(number), method.held_out_labels(number)
    if images is not None and labels is not None:
        return fit_logit_scale(method.block(images, number), labels)
    return record.logit_scale if record is not None else 1.0


def _logit_scale(method: Method) -> float:
    """Geometric mean of the tasks' inverse temperatures; a single one for all classes changes no prediction."""
    logs = [math.log(task.record.logit_scale) for task in method.tasks if task.record]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
