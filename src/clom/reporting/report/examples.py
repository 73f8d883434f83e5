"""Example test images of every task with the model's predictions: right, confused, or rejected as unknown.

An image is rejected if its largest calibrated score is too low compared with those of validation images
(`clom.ood.rejection`). The examples are evenly spaced among the images of their kind, not selected.

Tested by tests/reporting/report/test_page.py.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from clom.data import catalog
from clom.data.images import Images, evenly_spaced
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.analysis.finished_run import FinishedRun
from clom.experiments.analysis.ood_scores import external_images
from clom.methods.families.base import Blocks
from clom.ood.rejection import FALSE_REJECTION, HeldOutScores

_VALIDATION = 400  # images in total that set the threshold, unless `clom scores` has scored all of them
_SHOWN, _EDGE = 4, 96  # images per kind, pixels of the longer edge
_MANY_CLASSES = 4


@dataclass(frozen=True)
class Example:
    picture: str
    """A PNG as data URI."""
    truth: str
    answer: str
    answer_task: int


@dataclass(frozen=True)
class Kind:
    """Images with the same outcome."""

    name: str
    count: int
    examples: list[Example]


@dataclass(frozen=True)
class Gallery:
    """Examples of one set of test images."""

    title: str
    classes: str
    total: int
    kinds: list[Kind]


def local_stream(run: FinishedRun, data: Path | None) -> Stream | None:
    """The run's images, if they are on this machine; nothing is downloaded."""
    if not run.config.data.available(data):
        return None
    stream = run.config.data.stream(data, run.config.seed)
    if [len(images) for images in stream.tests] != [len(row[0]) for row in run.blocks]:
        raise UserError(
            f"The images of '{run.config.data.name}' found here are not those that {run.folder} was run on."
        )
    return stream


def threshold(run: FinishedRun, stream: Stream | None) -> float | None:
    """The score below which images are rejected, set on validation images; None without any."""
    validation = run.validation
    if validation is None and stream is not None:
        count = max(10, _VALIDATION // len(stream))
        validation = [run.method.blocks(evenly_spaced(task.validation, count).pixels) for task in stream]
    if validation is None:
        return None
    own = torch.cat([best_scores(run, row) for row in validation])
    return HeldOutScores.of(own.tolist()).threshold(FALSE_REJECTION)


def best_scores(run: FinishedRun, blocks: Blocks) -> Tensor:
    """The largest score of each image over all calibrated blocks, which decides its class."""
    return torch.cat(run.calibration(blocks), 1).amax(1)


def galleries(run: FinishedRun, stream: Stream, lowest: float) -> list[Gallery]:
    """One gallery per task."""
    made = []
    for task, images in enumerate(stream.tests):
        answers = _Answers(run, run.blocks[task], lowest)
        right = (answers.best == answers.first_class[task] + images.labels) & ~answers.rejected
        kinds = {"right": right, "confused": ~right & ~answers.rejected, "rejected": answers.rejected}
        made.append(_gallery(f"Task {task + 1}", run.class_names[task], images, kinds, answers))
    return made


def external_galleries(run: FinishedRun, stream: Stream, data: Path | None, lowest: float) -> list[Gallery]:
    """One gallery per external data set found on this machine; all of its images should be rejected."""
    made = []
    for name, blocks in run.external.items():
        if not catalog.available(name, data):
            continue
        images = external_images(name, data, stream.image_shape)
        if len(images) == len(blocks[0]):
            answers = _Answers(run, blocks, lowest)
            kinds = {"rejected": answers.rejected, "confused": ~answers.rejected}
            made.append(_gallery(name, (), images, kinds, answers))
    return made


class _Answers:
    """Predictions: class indices over all tasks, and which images are rejected."""

    def __init__(self, run: FinishedRun, blocks: Blocks, lowest: float) -> None:
        scores = torch.cat(run.calibration(blocks), 1)
        self.best = scores.argmax(1)
        self.rejected = scores.amax(1).double() < lowest
        self.names = [(name, task) for task, names in enumerate(run.class_names) for name in names]
        self.first_class = torch.tensor([0, *(len(names) for names in run.class_names)]).cumsum(0).tolist()


def _gallery(title: str, names: Sequence[str], images: Images, kinds: dict[str, Tensor], answers: _Answers) -> Gallery:
    """`names` are the class names; without any, the title serves as every image's name."""
    made = []
    for kind, members in kinds.items():
        rows = members.nonzero()[:, 0]
        rows = rows[images.labels[rows].argsort(stable=True)]  # so that the examples cover all classes
        examples = [
            Example(
                png_uri(images.pixels[row]),
                names[int(images.labels[row])] if names else title,
                *answers.names[int(answers.best[row])],
            )
            for row in _spread(rows.tolist(), _SHOWN)
        ]
        made.append(Kind(kind, len(rows), examples))
    return Gallery(title, short(names), len(images), made)


def short(names: Sequence[str]) -> str:
    """The first few names."""
    more = len(names) - _MANY_CLASSES
    return ", ".join(names[:_MANY_CLASSES]) + (f" and {more} more" if more > 0 else "")


def _spread(rows: Sequence[int], count: int) -> list[int]:
    return [rows[i * (len(rows) - 1) // (count - 1)] for i in range(count)] if len(rows) > count else list(rows)


def png_uri(pixels: Tensor) -> str:
    """Bytes `[channels, height, width]` as an inline PNG; large images are downscaled."""
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((_EDGE, _EDGE))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
