"""Uploaded pictures, file names and labels. None of them is ever used as a path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from clom.errors import DataError
from clom.photos.changes.names import clean_name
from clom.serve.images.decoder_pool import Decoders, Photo, Unreadable
from clom.serve.traffic.limits import Limits

_IN_MEMORY = 1_000_000
"""Larger pictures wait on the disk: whoever sends many and stops must not fill the memory."""


@dataclass(frozen=True)
class Upload:
    """An uploaded picture, in memory or in an unnamed temporary file."""

    name: str
    source: UploadFile

    async def read(self, most: int) -> bytes:
        """Its content, once: the file is deleted."""
        content = await self.source.read(most + 1)
        await self.source.close()
        if len(content) > most:
            raise DataError(f"too large: more than {most // 1_000_000} MB")
        return content


Decoded = Photo | Unreadable


async def decode_all(uploads: Sequence[Upload], decoders: Decoders, size: int, limits: Limits) -> list[Decoded]:
    """Decode to squares, or the reason for failure; only a few files of all requests are in memory at a time."""

    async def one(upload: Upload) -> Decoded:
        async with decoders.turn:
            try:
                return await decoders.decode(await upload.read(limits.picture_bytes), size)
            except DataError as problem:
                return Unreadable(upload.name, str(problem))

    return list(await asyncio.gather(*(one(upload) for upload in uploads)))


async def pictures_to_ask(request: Request, limits: Limits) -> list[Upload]:
    """The pictures of a request: its body, or the files of a form."""
    kind = _kind(request)
    if kind.startswith("image/") or kind == "application/octet-stream":
        return [Upload("picture", await _body(request))]
    form = await _form(request, limits.ask_pictures)
    uploads = _files(form)
    if not uploads:
        raise HTTPException(422, "No pictures came with the request: send files as 'pictures'.")
    return uploads


@dataclass(frozen=True)
class LessonRequest:
    """A requested task; `labels[i]` is the class index of upload i."""

    name: str | None
    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    uploads: tuple[Upload, ...]


async def lesson_to_learn(request: Request, limits: Limits) -> LessonRequest:
    form = await _form(request, limits.teach_pictures)
    uploads = _files(form)
    words = [value for value in form.getlist("labels") if isinstance(value, str)]
    if len(words) != len(uploads):
        raise HTTPException(
            422, f"Every picture needs a label: {len(uploads)} pictures came with {len(words)} labels, in this order."
        )
    labels = [clean_name(word, "class") for word in words]
    class_names = tuple(dict.fromkeys(labels))
    if len(class_names) > limits.teach_classes:
        raise HTTPException(
            413, f"{len(class_names)} classes at once are too many: {limits.teach_classes} is the most."
        )
    name = form.get("name")
    return LessonRequest(
        clean_name(name, "task") if isinstance(name, str) and name.strip() else None,
        class_names,
        tuple(class_names.index(label) for label in labels),
        tuple(uploads),
    )


async def _form(request: Request, most_files: int) -> FormData:
    if _kind(request) != "multipart/form-data":
        raise HTTPException(415, "Send pictures as multipart/form-data.")
    return await request.form(max_files=most_files, max_fields=most_files + 10, max_part_size=4096)


async def _body(request: Request) -> UploadFile:
    """The body of the request as a file."""
    spooled = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115, `Upload.read` closes it
    file = UploadFile(spooled)  # type: ignore[arg-type]
    async for part in request.stream():
        await file.write(part)
    await file.seek(0)
    return file


def _files(form: FormData) -> list[Upload]:
    found = [value for value in form.getlist("pictures") if isinstance(value, UploadFile)]
    return [Upload(_shown(file.filename or "picture"), file) for file in found]


def _shown(name: str) -> str:
    """A file name for display: base name, printable, shortened."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(sign if sign.isprintable() else "?" for sign in last)[:120] or "picture"


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
