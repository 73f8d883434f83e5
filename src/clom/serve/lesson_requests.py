"""Start a training job from a request with pictures and labels.

Tested by tests/serve/lessons/test_lessons.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from clom.errors import UserError
from clom.serve.images.decoder_pool import Unreadable
from clom.serve.images.uploads import LessonRequest, decode_all, lesson_to_learn
from clom.serve.service import LEAST_CLASSES, LEAST_PICTURES, Service

_MOST_LISTED = 3


async def begin_lesson(service: Service, request: Request) -> JSONResponse:
    """Read and check the request, then start the job; 202 with the job, or an error."""
    service.lessons.check_free()
    wanted = await lesson_to_learn(request, service.limits)
    active = service.engine.active
    name = _check_names(wanted, active.task_names, active.task_of_class)
    if len(wanted.uploads) * 3 * active.size**2 > service.limits.decoded_bytes:
        raise HTTPException(413, "These pictures are too many for one lesson. Teach fewer at a time.")
    _check_amounts(wanted, wanted.labels, [])
    found = await decode_all(wanted.uploads, service.decoders, active.size, service.limits)
    await request.close()  # deletes the temporary files of the uploads
    bad = [file for file in found if isinstance(file, Unreadable)]
    good = [
        (square, label) for square, label in zip(found, wanted.labels, strict=True) if isinstance(square, np.ndarray)
    ]
    labels = [label for _, label in good]
    try:
        _check_amounts(wanted, labels, bad)
    except UserError as problem:
        return JSONResponse({"error": str(problem), "unreadable": [vars(file) for file in bad]}, 422)
    pixels = torch.from_numpy(np.stack([square for square, _ in good]))
    job = await service.lessons.begin(name, wanted.class_names, pixels, labels, bad)
    return JSONResponse(job.to_json(), 202)


def _check_names(wanted: LessonRequest, tasks: Sequence[str], task_of_class: dict[str, str]) -> str:
    """The name of the task; raises if the task or a class is already known."""
    known = [f"'{name}' (of '{task_of_class[name]}')" for name in wanted.class_names if name in task_of_class]
    if known:
        raise UserError(f"The model knows these classes already: {', '.join(known)}. Give the new ones other names.")
    if wanted.name in tasks:
        raise UserError(f"The model has a task '{wanted.name}' already. Give the new one another name.")
    numbers = (f"task {number}" for number in range(len(tasks) + 1, 2 * len(tasks) + 3))
    return wanted.name or next(name for name in numbers if name not in tasks)


def _check_amounts(wanted: LessonRequest, labels: Sequence[int], bad: Sequence[Unreadable]) -> None:
    if len(wanted.class_names) < LEAST_CLASSES:
        raise UserError(f"At least {LEAST_CLASSES} classes are needed to tell something apart.")
    counts = Counter(labels)
    few = [f"'{name}' has {counts[n]}" for n, name in enumerate(wanted.class_names) if counts[n] < LEAST_PICTURES]
    if few:
        unread = "; ".join(f"{file.file}: {file.reason}" for file in bad[:_MOST_LISTED])
        more = f" Not readable: {unread}." if bad else ""
        raise UserError(f"Each class needs {LEAST_PICTURES} pictures or more: {', '.join(few)}.{more}")
