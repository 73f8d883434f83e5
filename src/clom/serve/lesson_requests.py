"""Start a training job from a request with pictures and labels.

Tested by tests/serve/lessons/test_lessons.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from clom.data.images import Images
from clom.errors import UserError, unknown
from clom.photos.hints import Hint, hints
from clom.serve.images.decoder_pool import Photo, Unreadable
from clom.serve.images.uploads import Decoded, LessonRequest, decode_all, lesson_to_learn
from clom.serve.service import LEAST_CLASSES, LEAST_PICTURES, Service

_MOST_LISTED = 3


async def begin_lesson(
    service: Service, request: Request, *, adds: bool = False, stop_at_hints: bool = False
) -> JSONResponse:
    """Read and check the request, then start the job; 202 with the job, or an error.

    The pictures are those of new classes, or with `adds` of known ones. With `stop_at_hints`, the job waits to be
    resumed if something was noticed about the pictures.
    """
    service.lessons.check_free()
    wanted = await lesson_to_learn(request, service.limits)
    active = service.engine.active
    if adds:
        name, least = _check_known(wanted, active.task_of_class), 1
    else:
        name, least = _check_names(wanted, active.task_names, active.task_of_class), LEAST_PICTURES
    if len(wanted.uploads) * 3 * active.size**2 > service.limits.decoded_bytes:
        raise HTTPException(413, "These pictures are too many for one lesson. Teach fewer at a time.")
    _check_amounts(wanted, wanted.labels, [], least)
    found = await decode_all(wanted.uploads, service.decoders, active.size, service.limits)
    await request.close()  # deletes the temporary files of the uploads
    bad = [file for file in found if isinstance(file, Unreadable)]
    labels = [label for file, label in zip(found, wanted.labels, strict=True) if isinstance(file, Photo)]
    try:
        _check_amounts(wanted, labels, bad, least)
    except UserError as problem:
        return JSONResponse({"error": str(problem), "unreadable": [vars(file) for file in bad]}, 422)
    pixels = torch.from_numpy(np.stack([file.square for file in found if isinstance(file, Photo)]))
    noticed = await asyncio.to_thread(_hints, wanted, found, Images(pixels, torch.tensor(labels)))
    job = await service.lessons.begin(
        name, wanted.class_names, pixels, labels, bad, adds=adds, hints=noticed, wait=stop_at_hints and bool(noticed)
    )
    return JSONResponse(job.to_json(), 202)


def _hints(wanted: LessonRequest, found: Sequence[Decoded], images: Images) -> tuple[Hint, ...]:
    read = [
        (f"{wanted.class_names[label]}/{upload.name}", file.size)
        for upload, label, file in zip(wanted.uploads, wanted.labels, found, strict=True)
        if isinstance(file, Photo)
    ]
    return hints(images, wanted.class_names, [name for name, _ in read], [size for _, size in read])


def _check_names(wanted: LessonRequest, tasks: Sequence[str], task_of_class: dict[str, str]) -> str:
    """The name of the task; raises if the task or a class is already known."""
    known = [f"'{name}' (of '{task_of_class[name]}')" for name in wanted.class_names if name in task_of_class]
    if known:
        raise UserError(f"The model knows these classes already: {', '.join(known)}. Give the new ones other names.")
    if wanted.name in tasks:
        raise UserError(f"The model has a task '{wanted.name}' already. Give the new one another name.")
    if len(wanted.class_names) < LEAST_CLASSES:
        raise UserError(f"At least {LEAST_CLASSES} classes are needed to tell something apart.")
    numbers = (f"task {number}" for number in range(len(tasks) + 1, 2 * len(tasks) + 3))
    return wanted.name or next(name for name in numbers if name not in tasks)


def _check_known(wanted: LessonRequest, task_of_class: dict[str, str]) -> str:
    """A title for the job; raises if a class is not known."""
    if not wanted.class_names:
        raise UserError("No pictures came with the request: send files as 'pictures'.")
    for name in wanted.class_names:
        if name not in task_of_class:
            raise unknown("class", name, task_of_class)
    return f"more of {', '.join(wanted.class_names)}"


def _check_amounts(wanted: LessonRequest, labels: Sequence[int], bad: Sequence[Unreadable], least: int) -> None:
    counts = Counter(labels)
    few = [f"'{name}' has {counts[n]}" for n, name in enumerate(wanted.class_names) if counts[n] < least]
    if few:
        unread = "; ".join(f"{file.file}: {file.reason}" for file in bad[:_MOST_LISTED])
        more = f" Not readable: {unread}." if bad else ""
        needed = "1 picture" if least == 1 else f"{least} pictures"
        raise UserError(f"Each class needs {needed} or more: {', '.join(few)}.{more}")
