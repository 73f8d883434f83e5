"""How long learning will take: a few of the pictures are learned by a copy, the rest is counted."""

from __future__ import annotations

import copy
import time
import warnings

import torch

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.loop import Progress
from clom.methods.base import Method

_CLASSES, _IMAGES = 2, 8  # enough for the smallest task, few enough to be quick
_PATIENCE = 6.0


class _LongEnough(Exception):
    """Raised inside of learning to end it."""


def estimate_seconds(method: Method, task: Task) -> float | None:
    """Seconds that learning `task` will take here; None if that cannot be told. The method is not changed.

    All that learning does is done for every image, so a small part of the images takes that part of the time.
    """
    few = _few(task)
    started = time.perf_counter()
    share = 1.0

    def watch(step: Progress) -> None:
        nonlocal share
        share = step.done / step.total
        if time.perf_counter() - started > _PATIENCE and step.done < step.total:
            raise _LongEnough

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few images may well teach nothing
            copy.deepcopy(method).learn(few, watch)
            share = 1.0
    except _LongEnough:
        pass
    except UserError:
        return None
    return (time.perf_counter() - started) / share * len(task.train) / len(few.train)


def _few(task: Task) -> Task:
    """The first images of the first classes."""
    n_classes = min(_CLASSES, task.n_classes)
    names = tuple(f"timing {label}" for label in range(n_classes))
    return Task("timing", names, _first(task.train, n_classes), _first(task.validation, n_classes))


def _first(images: Images, n_classes: int) -> Images:
    rows = [(images.labels == label).nonzero()[: _IMAGES // n_classes, 0] for label in range(n_classes)]
    return images[torch.cat(rows)]
